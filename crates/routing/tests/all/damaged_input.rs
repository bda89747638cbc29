//! Damaged and random text does not make the check of a profile or a fleet panic: the text is
//! accepted, or its problems are listed.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use wornpath_routing::fleet_spec::FleetSpec;
use wornpath_routing::{Profile, ProfileEnv};

/// Every shipped profile and every one in `tests/problems`.
static CORPUS: LazyLock<Vec<String>> = LazyLock::new(corpus);

fn corpus() -> Vec<String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [here.join("../../profiles"), here.join("tests/problems")];
    let mut files: Vec<_> = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    files.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Replaces `length` characters at a position, possibly by nothing.
#[derive(Clone, Debug)]
struct Edit {
    at: prop::sample::Index,
    length: usize,
    with: String,
}

fn edit() -> impl Strategy<Value = Edit> {
    let with = prop_oneof![
        Just(String::new()),
        prop::sample::select(vec![
            ": ", "- ", "{", "}", "[", "]", "\n", "  ", "'", "-1", "1e999", "NaN", "null",
            "weight", "step"
        ])
        .prop_map(str::to_owned),
        ".{0,6}",
    ];
    (any::<prop::sample::Index>(), 0..20_usize, with).prop_map(|(at, length, with)| Edit {
        at,
        length,
        with,
    })
}

fn edited(text: &str, edits: &[Edit]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for Edit { at, length, with } in edits {
        let start = at.index(letters.len() + 1);
        let end = (start + length).min(letters.len());
        letters.splice(start..end, with.chars());
    }
    letters.into_iter().collect()
}

/// The number of problems of an invalid profile, and the output that lists them.
fn refused(text: &str) -> (usize, String) {
    let problems = Profile::check("long.yaml", text, &ProfileEnv::default()).unwrap_err();
    (problems.all().len(), problems.to_string())
}

#[test]
fn all_of_20000_problems_are_found_and_the_first_hundred_are_shown() {
    let keys: Vec<_> = (0..20_000).map(|number| format!("key{number}: 1")).collect();
    let (found, shown) = refused(&format!("pick: max_score\n{}\n", keys.join("\n")));
    assert_eq!(found, 20_000);
    assert_eq!(shown.matches("error[").count(), 100);
    assert!(shown.contains("\nand 19900 more after these\n"), "{shown}");
    assert!(shown.ends_with("long.yaml: 20000 problems; the profile is not usable\n"));
    let (found, shown) = refused(&format!("{{pick: max_score, {}}}", keys.join(", ")));
    assert_eq!(found, 20_000);
    assert!(shown.len() < 50_000, "{} bytes", shown.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_damaged_profile_is_accepted_or_refused_with_listed_problems(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec(edit(), 1..6),
    ) {
        let text = edited(&CORPUS[which.index(CORPUS.len())], &edits);
        match Profile::check("damaged.yaml", &text, &ProfileEnv::default()) {
            Ok(profile) => {
                let printed = profile.printed();
                let again = Profile::check("printed.yaml", &printed, &ProfileEnv::default());
                prop_assert_eq!(again.unwrap().printed(), printed);
            }
            Err(problems) => {
                prop_assert!(!problems.all().is_empty());
                prop_assert!(problems.to_string().contains("= cure: "));
                for problem in problems.all() {
                    prop_assert!(!problem.message().is_empty() && problem.span().column > 0);
                }
            }
        }
    }

    #[test]
    fn the_checks_do_not_panic_on_any_text(text in "(?s).{0,200}") {
        let _ = Profile::check("any.yaml", &text, &ProfileEnv::default());
        let _ = FleetSpec::read("any.yaml", &text);
    }
}
