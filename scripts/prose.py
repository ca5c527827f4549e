#!/usr/bin/env python3
"""Checks the words of comments, documents and test names; CONTRIBUTING.md has the rules.

Usage: prose.py [PATH...]   (default: every file that git tracks)
Prints one line for each finding, and fails if there is one.
"""

import re
import subprocess
import sys

# A person as subject or object where a part of the program is meant.
PERSONS = re.compile(
    r"\b(who|whoever|whom|nobody|somebody|everybody|anybody|hearsay|told|hears?|heard)\b",
    re.IGNORECASE,
)
# A sentence whose subject is a clause without a noun; a question may begin like this.
HEADLESS = re.compile(r"(?:^|[.:;] )(What|Who|Whoever|Whom)\b(?![^.]*\?)")
TEST = re.compile(r"^\s*#\[(?:tokio::)?test\b")
FUNCTION = re.compile(r"^\s*(?:pub(?:\([a-z]+\))? )?(?:async )?fn ([a-z0-9_]+)")
LONGEST_TEST_NAME = 8
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")


def comment_of(path, line):
    """The text of a line that is a comment or prose, else None."""
    if path.endswith(".md"):
        return None if line.startswith(("    ", "```", "|--")) else line.strip()
    mark = r"\s*//[/!]?" if path.endswith((".rs", ".proto")) else r"\s*#(?!!|\[)"
    found = re.match(mark + r"\s?(.*)", line)
    return found.group(1).strip() if found else None


def blocks(path, lines):
    """Adjacent comment lines joined: (first line's number, text)."""
    start, words, fenced = 0, [], False
    for number, line in enumerate(lines, 1):
        text = comment_of(path, line)
        if text is not None and text.startswith("```") or line.startswith("```"):
            fenced, text = not fenced, None
        if fenced or not text:
            if words:
                yield start, " ".join(words)
            words = []
            continue
        if not words:
            start = number
        words.append(text)
    if words:
        yield start, " ".join(words)


def test_names(lines):
    """Names of test functions: (line number, name)."""
    attribute = False
    for number, line in enumerate(lines, 1):
        if TEST.match(line):
            attribute = True
        found = FUNCTION.match(line)
        if found:
            if attribute:
                yield number, found.group(1)
            attribute = False


def findings(path, lines):
    for number, text in blocks(path, lines):
        plain = QUOTED.sub("", text)
        if found := PERSONS.search(plain):
            yield number, f"name the part of the program that is meant by {found.group(0)!r}: {text[:90]}"
        elif found := HEADLESS.search(plain):
            yield number, f"begin with a noun, not {found.group(1)!r}: {text[:90]}"
    if path.endswith(".rs"):
        for number, name in test_names(lines):
            words = name.split("_")
            if len(words) > LONGEST_TEST_NAME:
                yield number, f"a test name of {len(words)} words, at most {LONGEST_TEST_NAME}: {name}"
            if found := PERSONS.search(" ".join(words)):
                yield number, f"{found.group(0)!r} in the name of a test: {name}"


def main():
    paths = sys.argv[1:] or ["."]
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *paths], check=True, capture_output=True, text=True
    ).stdout.split("\n")
    count = 0
    for path in listed:
        if not path.endswith((".rs", ".proto", ".sh", ".py", ".md", "Makefile")) or path.endswith("prose.py"):
            continue
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.read().split("\n")
        except FileNotFoundError:
            continue
        for number, finding in findings(path, lines):
            print(f"{path}:{number}: {finding}")
            count += 1
    if count:
        sys.exit(f"{count} places to put in plain words (CONTRIBUTING.md, 'Names and prose')")


if __name__ == "__main__":
    main()
