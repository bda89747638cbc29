//! The one form in which every command reports an error: `error: …`, then its causes, a line each.

use std::io::{self, Write};

/// Prints an error and its causes, and no backtrace: it would not help users, even if they set
/// `RUST_BACKTRACE` for their own programs. Problems of a configuration bring the same form
/// themselves, each with its position.
pub(crate) fn print_error(error: &anyhow::Error, out: &mut impl Write) -> io::Result<()> {
    let text = error.to_string();
    let label = if text.starts_with("error[") { "" } else { "error: " };
    writeln!(out, "{label}{text}")?;
    error.chain().skip(1).try_for_each(|cause| writeln!(out, "  because: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn printed(error: &anyhow::Error) -> String {
        let mut out = Vec::new();
        print_error(error, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_error_is_followed_by_its_causes_and_a_problem_with_a_position_stays_as_it_is() {
        let error = anyhow!("no such file").context("cannot read a.yaml");
        assert_eq!(printed(&error), "error: cannot read a.yaml\n  because: no such file\n");
        let problem = anyhow!("error[unknown-key]: no key `x`\n --> a.yaml:1:1");
        assert!(printed(&problem).starts_with("error[unknown-key]: no key"));
    }
}
