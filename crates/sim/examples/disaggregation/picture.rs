//! The grid as a picture: one panel for each figure and load, one cell for each kind of prompt.

use std::fmt::Write;

/// The ratio of a figure with all requests split to the same with none split.
pub(crate) struct Cell {
    pub(crate) ratio: f64,
    /// Whether the built-in rule splits most of these requests.
    pub(crate) is_split: bool,
}

/// The cells of one figure at one load, by length and then by share.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) cells: Vec<Cell>,
}

const CELL: [usize; 2] = [62, 26];
const LEFT: usize = 64;
const TOP: usize = 44;
const GAP: usize = 26;

/// Draws the panels, `columns` in a row. Less than one is good.
pub(crate) fn draw(panels: &[Panel], columns: usize, lengths: &[usize], shared: &[f64]) -> String {
    let [cell_width, cell_height] = CELL;
    let panel_width = cell_width * shared.len() + GAP;
    let panel_height = cell_height * lengths.len() + TOP + GAP;
    let width = LEFT + panel_width * columns;
    let height = panel_height * panels.len().div_ceil(columns) + 44;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\">\n\
         <title>Prefill and decode on two pods each, against four pods that do both: ratio of the 95th percentiles</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>"
    );
    for (number, panel) in panels.iter().enumerate() {
        let left = LEFT + panel_width * (number % columns);
        let top = panel_height * (number / columns);
        let _ = writeln!(
            out,
            "<text x=\"{left}\" y=\"{}\" font-weight=\"600\">{}</text>",
            top + 18,
            panel.title
        );
        for (column, shared) in shared.iter().enumerate() {
            let x = left + column * cell_width + cell_width / 2;
            let percent = 100.0 * shared;
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#444\">{percent:.0} % hit</text>",
                top + TOP - 8
            );
        }
        for (row, length) in lengths.iter().enumerate() {
            let y = top + TOP + row * cell_height;
            if number % columns == 0 {
                let _ = writeln!(
                    out,
                    "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#444\">{length}</text>",
                    left - 8,
                    y + 17
                );
            }
            for column in 0..shared.len() {
                let cell = &panel.cells[row * shared.len() + column];
                draw_cell(&mut out, left + column * cell_width, y, cell);
            }
        }
    }
    let y = height - 16;
    let _ = writeln!(
        out,
        "<text x=\"8\" y=\"{y}\" fill=\"#444\">Rows: tokens of a prompt. Below 1 (blue) splitting every request wins, above 1 (orange) it loses. \
         Framed: the built-in rule splits.</text>\n</svg>"
    );
    out
}

fn draw_cell(out: &mut String, x: usize, y: usize, cell: &Cell) {
    let [width, height] = CELL;
    let stroke =
        if cell.is_split { "stroke=\"#222\" stroke-width=\"1.5\"" } else { "stroke=\"none\"" };
    let _ = writeln!(
        out,
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" {stroke}/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{:.2}</text>",
        x + 1,
        y + 1,
        width - 3,
        height - 3,
        colour(cell.ratio),
        x + width / 2,
        y + 17,
        cell.ratio
    );
}

/// From blue for a quarter over white for one to orange for four times as much.
fn colour(ratio: f64) -> String {
    let strength = (ratio.max(1e-9).log2() / 2.0).clamp(-1.0, 1.0);
    let end = if strength < 0.0 { [107.0, 174.0, 214.0] } else { [253.0, 141.0, 60.0] };
    let [red, green, blue] =
        end.map(|part: f64| (255.0 + (part - 255.0) * strength.abs()).round() as u8);
    format!("#{red:02x}{green:02x}{blue:02x}")
}
