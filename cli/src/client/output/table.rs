//! Tables: padded columns, two spaces between them, no borders.

use crate::client::failure::one_line;

/// Maximum length of a cell in an ordinary column, in characters.
const MAX_CELL: usize = 40;
const GAP: &str = "  ";

/// A column: its header, and whether its cells are never truncated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    name: &'static str,
    free: bool,
}

/// A column whose long cells are truncated.
pub(crate) const fn col(name: &'static str) -> Column {
    Column { name, free: false }
}

/// A column of free text, which is never truncated.
pub(crate) const fn free(name: &'static str) -> Column {
    Column { name, free: true }
}

/// Renders a header and rows, one line each; cells missing at the end of a row are empty.
pub(crate) fn render(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut lines = vec![
        columns
            .iter()
            .map(|column| column.name.to_owned())
            .collect(),
    ];
    lines.extend(rows.into_iter().map(|row| cells(columns, &row)));
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| {
            lines
                .iter()
                .map(|line: &Vec<String>| width(line, at))
                .max()
                .unwrap_or(0)
        })
        .collect();
    lines.iter().map(|line| padded(line, &widths)).collect()
}

/// Renders one row with fixed widths, for tables that are printed incrementally.
pub(crate) fn fixed(row: &[String], widths: &[usize]) -> String {
    let row: Vec<String> = row.iter().map(|cell| one_line(cell)).collect();
    padded(&row, widths)
}

fn cells(columns: &[Column], row: &[String]) -> Vec<String> {
    let empty = String::new();
    columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let cell = one_line(row.get(at).unwrap_or(&empty));
            if column.free { cell } else { cut(cell) }
        })
        .collect()
}

fn cut(cell: String) -> String {
    if cell.chars().count() <= MAX_CELL {
        return cell;
    }
    let mut cell: String = cell.chars().take(MAX_CELL - 1).collect();
    cell.push('…');
    cell
}

fn width(line: &[String], at: usize) -> usize {
    line.get(at).map_or(0, |cell| cell.chars().count())
}

fn padded(row: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (at, cell) in row.iter().enumerate() {
        if at > 0 {
            line.push_str(GAP);
        }
        let width = widths.get(at).copied().unwrap_or(0);
        line.push_str(&format!("{cell:<width$}"));
    }
    let mut line = line.trim_end().to_owned();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn column_is_as_wide_as_its_widest_cell() {
        let text = render(
            &[col("NAME"), col("N"), free("REASON")],
            [row(&["a", "100", ""]), row(&["längster", "1", "x y"])],
        );
        assert_eq!(
            text,
            "NAME      N    REASON\na         100\nlängster  1    x y\n"
        );
    }

    #[test]
    fn long_cells_are_truncated_except_free_text() {
        let long = "é".repeat(41);
        let text = render(&[col("A"), free("B")], [row(&[&long, &long])]);
        let cell = format!("{}…", "é".repeat(39));
        assert!(text.ends_with(&format!("\n{cell}  {long}\n")), "{text}");
        let whole = "x".repeat(40);
        assert!(render(&[col("A")], [row(&[&whole])]).contains(&whole));
    }

    #[test]
    fn missing_cells_and_control_characters_are_blank() {
        assert_eq!(
            render(&[col("A"), col("B")], [row(&["x\ny"])]),
            "A    B\nx y\n"
        );
    }

    #[test]
    fn fixed_widths_never_truncate() {
        assert_eq!(fixed(&row(&["abc", "d", "e"]), &[2, 4]), "abc  d     e\n");
    }
}
