//! "Did you mean": finds the known word nearest to a misspelt one.

/// The nearest of `known`, if it differs in at most a third of the letters, or in one.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = (word.chars().count() / 3).max(1);
    known
        .map(|other| (distance(word, other), other))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

/// Letters to insert, delete or replace (Levenshtein), one row at a time.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (deleted, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = deleted + 1;
        for (at, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelling_is_recognised_and_another_word_is_not() {
        let known = ["cache_affinity", "least_load", "healthy"];
        assert_eq!(nearest("cache_afinity", known.into_iter()), Some("cache_affinity"));
        assert_eq!(nearest("leastload", known.into_iter()), Some("least_load"));
        assert_eq!(nearest("random", known.into_iter()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
