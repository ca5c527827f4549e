// Compares the documents that `jaco config` resolves with those of compose-go.
//
// Files are generated from a seed: services with keys in all their forms, a second file merged over
// the first, extends within and across files, include, profiles, anchors, variables, env_file. Both
// resolve them; the document of JACO is then loaded by compose-go too, as a file on its own, so that
// only the content is compared and not its spelling. Differences that docs/compose.md lists are not
// generated.
//
// Usage: go run . [-n FILES] [-seed N] [-keep] JACO   (JACO: path of the client)
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// refused counts the projects that both refuse.
var refused int

var (
	count = flag.Int("n", 10000, "number of generated projects")
	first = flag.Int64("seed", 1, "seed of the first project")
	keep  = flag.Bool("keep", false, "keep the files of a difference")
)

// values of the keys of a service; each has several forms.
var values = map[string][]string{
	"image":             {"nginx", "nginx:${TAG}", "${IMAGE:-redis}:7"},
	"command":           {"[a, b]", "run it", "['$$HOME', x]"},
	"entrypoint":        {"[/e]", "/e --flag"},
	"environment":       {"{A: 1, B: x}", "[A=2, C=z]", "{A: '${TAG}', D: \"\"}"},
	"labels":            {"{l: a}", "[l=b, m=c]", "{n: '1'}"},
	"ports":             {"['9001:80']", "['9002:81', '9001:80']", "[{target: 80, published: '9001'}]", "['9003:82/udp']"},
	"volumes":           {"['data:/d']", "['./rel:/d:ro', '/abs:/e']", "[{type: bind, source: ./x, target: /x}]", "['data:/e']"},
	"expose":            {"['80']", "['81', '80']"},
	"cap_add":           {"[NET_ADMIN]", "[SYS_TIME, NET_ADMIN]"},
	"cap_drop":          {"[ALL]", "[CHOWN]"},
	"dns":               {"1.1.1.1", "[1.1.1.1, 8.8.8.8]"},
	"dns_search":        {"a.io", "[b.io]"},
	"tmpfs":             {"/run", "[/tmp, /run]"},
	"user":              {"a", "'1000'", "${USR:-u}"},
	"working_dir":       {"/w", "/v"},
	"hostname":          {"h1", "h2"},
	"restart":           {"always", "unless-stopped", "'no'", "no", "on-failure", "on-failure:3"},
	"post_start":        {"[{command: a}]", "[{command: [b, c], user: root, environment: {E: '${TAG}'}}]"},
	"pre_stop":          {"[{command: ./stop --now, working_dir: /w}]", "[{command: [d], environment: [F=g]}]"},
	"configs":           {"[site]", "[{source: site, target: /etc/site, mode: 0440}, motd]", "[{source: motd, uid: '5'}]"},
	"secrets":           {"[key]", "[{source: key, target: k}]"},
	"healthcheck":       {"{test: [CMD, a], interval: 5s}", "{test: b, retries: 3}", "{disable: true}"},
	"logging":           {"{driver: json-file, options: {max-size: 1m}}", "{driver: syslog}", "{options: {max-file: '2'}}"},
	"ulimits":           {"{nofile: 5}", "{nofile: {soft: 1, hard: 2}}", "{nproc: 7}"},
	"sysctls":           {"{net.a: 1}", "[net.b=2]"},
	"deploy":            {"{replicas: 2}", "{resources: {limits: {memory: 64M}}}", "{labels: {a: b}}", "{restart_policy: {condition: on-failure, max_attempts: 2, delay: 5s}}", "{placement: {constraints: [node.hostname == a]}}"},
	"depends_on":        {"[db]", "{db: {condition: service_healthy}}", "{db: {condition: service_completed_successfully}}"},
	"networks":          {"[front]", "{front: {aliases: [x]}, back: }", "[back]"},
	"init":              {"true", "false"},
	"tty":               {"true"},
	"stop_signal":       {"SIGINT"},
	"stop_grace_period": {"10s", "1m"},
	"extra_hosts":       {"['a:1.1.1.1']", "{b: 2.2.2.2}"},
	"env_file":          {"e.env", "[e.env, {path: gone.env, required: false}]"},
	"platform":          {"linux/amd64"},
	"annotations":       {"{a: b}", "[c=d]"},
	"group_add":         {"[audio]", "['5']"},
	"links":             {"[db]", "['db:data']"},
	"shm_size":          {"64m"},
	"security_opt":      {"['no-new-privileges:true']", "[apparmor=x]"},
	"devices":           {"[/dev/a]", "['/dev/b:/dev/a']"},
	"profiles":          {"[on]", "[off]", "[on, off]"},
}

// overridable has keys that files merge with a tag.
var overridable = []string{"ports", "volumes", "environment", "command", "labels", "dns", "user"}

type project struct {
	random *rand.Rand
	dir    string
	files  []string
}

func (p *project) pick(list []string) string { return list[p.random.Intn(len(list))] }

func (p *project) keys(most int, without ...string) []string {
	names := make([]string, 0, len(values))
	for name := range values {
		skip := false
		for _, other := range without {
			skip = skip || other == name
		}
		if !skip {
			names = append(names, name)
		}
	}
	// Maps have no order of their own, and a seed must give the same files.
	for i := range names {
		for j := i + 1; j < len(names); j++ {
			if names[j] < names[i] {
				names[i], names[j] = names[j], names[i]
			}
		}
	}
	p.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names[:p.random.Intn(most)+1]
}

func (p *project) body(most int, without ...string) []string {
	var lines []string
	for _, key := range p.keys(most, without...) {
		lines = append(lines, key+": "+p.pick(values[key]))
	}
	return lines
}

func (p *project) service(name string, lines []string) string {
	text := "  " + name + ":\n"
	for _, line := range lines {
		text += "    " + line + "\n"
	}
	return text
}

func has(lines []string, key string) bool {
	for _, line := range lines {
		if strings.HasPrefix(line, key+":") {
			return true
		}
	}
	return false
}

func (p *project) write(name, text string) {
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		panic(err)
	}
}

func (p *project) generate() {
	p.write("e.env", "E1=one\nE2=\"two $E1\"\n")
	p.write("lib/e.env", "L1=lib\n")
	p.write(".env", "TAG=1.2\nIMAGE=busybox\n")
	main := "name: shop\nx-base: &base {labels: {anchor: 'yes'}, init: true}\nservices:\n"
	main += p.service("db", []string{"image: pg"})
	web := p.body(8)
	if !has(web, "image") {
		web = append(web, "image: web")
	}
	if p.random.Intn(3) == 0 && !has(web, "labels") && !has(web, "init") {
		web = append(web, "<<: *base")
	}
	switch p.random.Intn(4) {
	case 0:
		web = append(web, "extends: base")
	case 1:
		web = append(web, "extends: {file: lib/lib.yaml, service: common}")
	}
	main += p.service("web", web)
	main += p.service("base", append([]string{"image: base"}, p.body(4, "image", "ports", "profiles", "links", "depends_on", "networks")...))
	p.write("lib/lib.yaml", "services:\n"+p.service("common", append([]string{"extends: root"}, p.body(4, "profiles", "links", "depends_on", "networks")...))+
		p.service("root", p.body(4, "profiles", "links", "depends_on", "networks")))
	tail := "networks: {front: , back: {internal: true}}\nvolumes: {data: }\n" +
		"configs: {site: {file: ./site.conf}, motd: {content: 'at ${TAG}'}}\nsecrets: {key: {file: ./key}}\n"
	p.write("site.conf", "a")
	p.write("key", "b")
	if p.random.Intn(4) == 0 {
		main = "include: [inc/compose.yaml]\n" + main
		p.write("inc/compose.yaml", "services:\n"+p.service("side", []string{"image: side:${TAG}", "volumes: ['./in:/in']"}))
	}
	p.write("compose.yaml", main+tail)
	p.files = []string{"compose.yaml"}
	if p.random.Intn(3) > 0 {
		over := p.body(6)
		if p.random.Intn(3) == 0 {
			key := p.pick(overridable)
			if !has(over, key) {
				tag := p.pick([]string{"!override ", "!reset "})
				over = append(over, key+": "+tag+p.pick(values[key]))
			}
		}
		p.write("over.yaml", "services:\n"+p.service("web", over))
		p.files = append(p.files, "over.yaml")
	}
}

func load(dir string, files []string, interpolate bool) (*types.Project, error) {
	options := []cli.ProjectOptionsFn{
		cli.WithWorkingDirectory(dir),
		cli.WithName("shop"),
		cli.WithProfiles([]string{"on"}),
		cli.WithInterpolation(interpolate),
	}
	if interpolate {
		options = append(options, cli.WithEnvFiles(), cli.WithDotEnv)
	}
	paths := make([]string, len(files))
	for i, file := range files {
		paths[i] = filepath.Join(dir, file)
	}
	set, err := cli.NewProjectOptions(paths, options...)
	if err != nil {
		return nil, err
	}
	loaded, err := set.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	loaded.DisabledServices = nil
	for name, service := range loaded.Services {
		service.EnvFiles, service.LabelFiles, service.Profiles = nil, nil, nil
		loaded.Services[name] = service
	}
	loaded.Extensions = nil
	return loaded, nil
}

func text(p *types.Project) string {
	out, err := p.MarshalYAML()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

func run(jaco string, seed int64) (difference string) {
	dir, err := os.MkdirTemp("", "compose-go-")
	if err != nil {
		panic(err)
	}
	defer func() {
		if difference == "" || !*keep {
			os.RemoveAll(dir)
		} else {
			difference += "\nfiles: " + dir
		}
	}()
	p := &project{random: rand.New(rand.NewSource(seed)), dir: dir}
	p.generate()
	theirs, theirError := load(dir, p.files, true)
	args := []string{"config", "--profile", "on"}
	for _, file := range p.files {
		args = append(args, "-f", filepath.Join(dir, file))
	}
	command := exec.Command(jaco, args...)
	var out, errors bytes.Buffer
	command.Stdout, command.Stderr = &out, &errors
	ourError := command.Run()
	if theirError != nil || ourError != nil {
		if (theirError == nil) == (ourError == nil) {
			refused++
			return ""
		}
		return fmt.Sprintf("compose-go: %v\njaco: %v %s", theirError, ourError, errors.String())
	}
	p.write("jaco.yaml", out.String())
	ours, err := load(dir, []string{"jaco.yaml"}, false)
	if err != nil {
		return fmt.Sprintf("compose-go refuses the document of jaco: %v\n%s", err, out.String())
	}
	ours.ComposeFiles, theirs.ComposeFiles = nil, nil
	if a, b := text(theirs), text(ours); a != b {
		return lines(a, b)
	}
	return ""
}

// lines returns the lines that only one of two texts has.
func lines(a, b string) string {
	only := func(sign, a, b string) string {
		known := map[string]int{}
		for _, line := range strings.Split(b, "\n") {
			known[line]++
		}
		var out string
		for _, line := range strings.Split(a, "\n") {
			if known[line]--; known[line] < 0 {
				out += sign + line + "\n"
			}
		}
		return out
	}
	if found := only("- ", a, b) + only("+ ", b, a); found != "" {
		return found
	}
	return "the order differs:\n" + a + "\n---\n" + b
}

func main() {
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	failed := 0
	for i := 0; i < *count; i++ {
		seed := *first + int64(i)
		if found := run(flag.Arg(0), seed); found != "" {
			failed++
			if failed <= 10 {
				fmt.Printf("seed %d (- compose-go, + jaco):\n%s\n", seed, found)
			}
		}
	}
	fmt.Printf("%d projects, %d refused by both, %d differ\n", *count, refused, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
