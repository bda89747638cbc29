//! The router of this crate knows its plugins in every command, and the page shows its code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs the router in this folder.
fn router(arguments: &[&str]) -> Output {
    let mut router = Command::new(env!("CARGO_BIN_EXE_my-router"));
    router.current_dir(folder()).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(all).unwrap()
}

/// The explanation of a request from Hamburg, without its durations.
fn explained() -> String {
    let output = router(&[
        "explain",
        "--profile",
        "near.yaml",
        "--fleet",
        "fleet.yaml",
        "--header",
        "x-client-location: 53.6,10.0",
        "request.json",
    ]);
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

fn page() -> String {
    fs::read_to_string(folder().join("../../docs/plugins/writing-one.md")).unwrap()
}

/// The blocks of code of the page in one language, one after another.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap().trim_end().to_owned()).collect()
}

#[test]
fn the_near_pod_wins_although_it_has_more_load() {
    let shown = explained();
    let winner = shown.lines().find(|line| line.contains('→')).unwrap();
    assert!(winner.contains("berlin"), "{shown}");
}

#[test]
fn a_profile_without_the_preparer_is_refused_with_the_cure() {
    let profile = fs::read_to_string(folder().join("near.yaml")).unwrap();
    let without = profile.replace("  - client_location: {header: x-client-location}\n", "");
    let without = without.replace("prepare:\n", "");
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("without.yaml");
    fs::write(&path, without).unwrap();
    let output = router(&["check", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(78), "{}", text(&output));
    assert!(text(&output).contains("add `client_location` to `prepare`"), "{}", text(&output));
}

#[test]
fn the_configuration_of_a_server_knows_the_plugins_and_a_misspelt_one_is_named() {
    let temporary = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let write = |name: &str, text: &str| {
        let path = temporary.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let profile = fs::read_to_string(folder().join("near.yaml")).unwrap();
    write("near.yaml", &profile);
    write("far.yaml", &profile.replace("proximity:", "proximty:"));
    let configuration = |profile: &str| {
        format!(
            "profiles: {{p: {profile}}}\nroutes: [{{profile: p}}]\npods: [{{url: \"http://127.0.0.1:1\"}}]\n"
        )
    };
    let good = router(&["check", &write("good-config.yaml", &configuration("near.yaml"))]);
    assert!(good.status.success(), "{}", text(&good));
    let bad = router(&["check", &write("bad-config.yaml", &configuration("far.yaml"))]);
    assert_eq!(bad.status.code(), Some(78), "{}", text(&bad));
    assert!(text(&bad).contains("did you mean `proximity`?"), "{}", text(&bad));
}

#[test]
fn the_page_shows_the_whole_program_its_profile_and_what_it_explains() {
    let page = page();
    let program = fs::read_to_string(folder().join("src/main.rs")).unwrap();
    assert_eq!(
        blocks(&page, "rust").join("\n\n"),
        program.trim_end(),
        "the Rust blocks of the page"
    );
    let profile = fs::read_to_string(folder().join("near.yaml")).unwrap();
    assert!(blocks(&page, "yaml").contains(&profile.trim_end().to_owned()), "{profile}");
    let explained = explained();
    let step: Vec<_> = explained
        .lines()
        .skip_while(|line| !line.starts_with("step "))
        .take_while(|line| !line.is_empty())
        .filter(|line| !line.contains("µs"))
        .collect();
    assert!(page.contains(&step.join("\n")), "{}", step.join("\n"));
}

/// Cargo resolves the copied folder alone, with the lock file that the README says to copy.
#[test]
fn a_copy_outside_the_repository_is_a_crate_of_its_own() {
    let outside = std::env::temp_dir().join(format!("wornpath-plugin-{}", std::process::id()));
    fs::create_dir_all(outside.join("src")).unwrap();
    let manifest = fs::read_to_string(folder().join("Cargo.toml")).unwrap();
    let repository = folder().join("../..").canonicalize().unwrap();
    let manifest = manifest.replace("../..", repository.to_str().unwrap());
    fs::write(outside.join("Cargo.toml"), manifest).unwrap();
    fs::copy(folder().join("src/main.rs"), outside.join("src/main.rs")).unwrap();
    fs::copy(repository.join("Cargo.lock"), outside.join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&outside).args(["tree", "--offline", "--depth", "1", "--prefix", "none"]);
    let output = cargo.output().unwrap();
    fs::remove_dir_all(&outside).unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let tree = text(&output);
    assert!(tree.contains("my-router") && tree.contains("wornpath v"), "{tree}");
}
