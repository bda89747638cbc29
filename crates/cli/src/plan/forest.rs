//! The prefix forest as it is drawn: a cell for each prefix that several requests share, named by
//! the text that sets it apart.

use super::prompts::Prompts;
use std::ops::Range;
use wornpath_planner::{Forest, PromptGroup, PromptGroups};

/// Rows that are drawn, and the narrowest cells, as a share of all requests.
const ROWS: usize = 12;
const NARROWEST: f64 = 0.0015;
/// Cells that are at least this wide are named: naming one reads two lines of the file.
const NAMED: f64 = 0.012;
/// Letters of a name.
const LETTERS: usize = 60;

/// A prefix that several requests share.
pub(super) struct SharedCell {
    /// The number of shorter prefixes that contain it.
    pub(super) row: usize,
    pub(super) positions: Range<usize>,
    /// Tokens of the whole prefix, and those beyond the prefix above.
    pub(super) tokens: usize,
    pub(super) own_tokens: usize,
    /// The beginning of what these requests share beyond the prefix above.
    pub(super) name: String,
}

pub(super) fn cells(groups: &PromptGroups, forest: &Forest, prompts: &Prompts) -> Vec<SharedCell> {
    let block = prompts.queue.block_size().get();
    let requests = forest.order().len().max(1) as f64;
    let mut cells = Vec::new();
    for group in groups.all() {
        let width = group.positions.len() as f64 / requests;
        let row = ancestors(groups, group);
        if width < NARROWEST || row >= ROWS {
            continue;
        }
        let above = groups.blocks_above(group);
        let name = match width >= NAMED {
            true => name(groups, group, forest, prompts),
            false => String::new(),
        };
        cells.push(SharedCell {
            row,
            positions: group.positions.clone(),
            tokens: group.blocks * block,
            own_tokens: (group.blocks - above) * block,
            name,
        });
    }
    cells
}

fn ancestors(groups: &PromptGroups, group: &PromptGroup) -> usize {
    std::iter::successors(group.parent, |id| groups.all()[id.index()].parent).count()
}

/// The text from where a group's requests part from the others of its parent; of a trace, which has
/// no text, the blocks.
pub(super) fn name(
    groups: &PromptGroups,
    group: &PromptGroup,
    forest: &Forest,
    prompts: &Prompts,
) -> String {
    let request = |position: usize| forest.order()[position].index();
    let first = request(group.positions.start);
    let text = prompts.text(first);
    if text.is_empty() {
        return format!("{} blocks of line {}", group.blocks, prompts.line(first));
    }
    let parent = group.parent.map(|id| &groups.all()[id.index()].positions);
    let other = parent.and_then(|around| {
        let before = (group.positions.start > around.start).then_some(around.start);
        before.or((group.positions.end < around.end).then_some(group.positions.end))
    });
    let from = other.map_or(0, |position| parting(&text, &prompts.text(request(position))));
    readable(&text[from..])
}

/// Where two texts part, at the beginning of a word.
fn parting(text: &str, other: &str) -> usize {
    let common = text.bytes().zip(other.bytes()).take_while(|(one, two)| one == two).count();
    let common = text.floor_char_boundary(common);
    text[..common].rfind(char::is_whitespace).map_or(0, |at| text.ceil_char_boundary(at + 1))
}

/// The beginning of a text on one line.
fn readable(text: &str) -> String {
    let start = &text[..text.floor_char_boundary(8 * LETTERS)];
    let words = start.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_named_by_the_word_that_sets_it_apart() {
        let of_paris = "You are a guide. The city: Paris, in spring";
        let of_padua = "You are a guide. The city: Padua, in autumn";
        assert_eq!(&of_paris[parting(of_paris, of_padua)..], "Paris, in spring");
        assert_eq!(parting("alpha", "beta"), 0);
        assert_eq!(parting("größe ä", "größe ö"), "größe ".len());
    }

    #[test]
    fn a_long_text_is_cut_and_stays_on_one_line() {
        assert_eq!(readable("a\n\tb  c"), "a b c");
        let long = readable(&"ä".repeat(500));
        assert_eq!((long.chars().count(), long.ends_with('…')), (LETTERS + 1, true));
    }
}
