//! Import cycles between the modules of a crate.
//!
//! A module imports another if its code names it by a path that begins with `crate`, `super` or
//! `self`; tests do not count. Names that a parent declares or re-exports are no imports, and
//! neither is what a module uses of its own ancestors or descendants: a folder is one idea. Modules
//! are compared file by file, and folder by folder at the top of a crate.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::Source;

type Imports = BTreeMap<String, BTreeSet<String>>;

/// Every cycle of a crate's sources, as a list of modules.
pub(crate) fn cycles(sources: &[&Source], src: &str) -> Vec<Vec<String>> {
    let modules: BTreeMap<String, &Source> =
        sources.iter().map(|source| (module_of(&source.path, src), *source)).collect();
    let mut files = Imports::new();
    let mut folders = Imports::new();
    for (module, source) in &modules {
        for path in paths(source, module) {
            let Some(imported) = known_module(&modules, &path) else { continue };
            if is_within(&imported, module) || is_within(module, &imported) {
                continue;
            }
            files.entry(module.clone()).or_default().insert(imported.clone());
            let top = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
            if top(module) != top(&imported) && !module.is_empty() {
                folders.entry(top(module)).or_default().insert(top(&imported));
            }
        }
    }
    let mut found = components(&files);
    found.extend(components(&folders));
    found
}

/// `crates/x/src/a/b.rs` is `a::b`; the root of a crate is the empty path.
fn module_of(path: &str, src: &str) -> String {
    let inside = path.strip_prefix(src).and_then(|rest| rest.strip_prefix('/')).unwrap_or(path);
    let inside = inside.trim_end_matches(".rs").trim_end_matches("/mod");
    if ["lib", "main"].contains(&inside) { String::new() } else { inside.replace('/', "::") }
}

fn is_within(inner: &str, outer: &str) -> bool {
    inner == outer || outer.is_empty() || inner.starts_with(&format!("{outer}::"))
}

/// The longest beginning of a path that is a module.
fn known_module(modules: &BTreeMap<String, &Source>, path: &[String]) -> Option<String> {
    (1..=path.len())
        .rev()
        .map(|length| path[..length].join("::"))
        .find(|it| modules.contains_key(it))
}

/// All paths in a module's code that begin with `crate`, `super` or `self`, from the crate's root.
fn paths(source: &Source, module: &str) -> Vec<Vec<String>> {
    let code: Vec<_> = source.code_lines().map(|(_, line)| line).collect();
    let code = code.join("\n");
    let mut paths = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let is_word =
                code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
            let follows_path = code[..at].ends_with("::");
            if !is_word && !follows_path {
                flatten(&code[at..], &[], &mut paths);
            }
        }
    }
    let own: Vec<String> =
        module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    paths.iter().map(|path| absolute(path, &own)).collect()
}

fn absolute(path: &[String], own: &[String]) -> Vec<String> {
    let mut base = if path[0] == "crate" { Vec::new() } else { own.to_vec() };
    for part in path {
        match part.as_str() {
            "crate" | "self" => {}
            "super" => {
                base.pop();
            }
            name => base.push(name.to_owned()),
        }
    }
    base
}

/// Takes a path apart, with the braces of a `use`. Returns how many bytes it has.
fn flatten(text: &str, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    let mut at = 0;
    loop {
        let word: String =
            text[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        at += word.len();
        if !word.is_empty() {
            path.push(word);
        }
        if let Some(rest) = text[at..].strip_prefix("::{") {
            at += 3;
            let mut inside = rest;
            loop {
                let blank = inside.len() - inside.trim_start_matches([' ', '\n', ',']).len();
                at += blank;
                inside = &inside[blank..];
                if inside.is_empty() || inside.starts_with('}') {
                    return at + 1;
                }
                let mut used = flatten(inside, &path, found);
                // ` as name`, `*`
                used += inside[used..].find([',', '}', '\n']).unwrap_or(inside.len() - used);
                at += used;
                inside = &inside[used..];
            }
        }
        if text[at..].starts_with("::") {
            at += 2;
        } else {
            found.push(path);
            return at;
        }
    }
}

/// Groups of more than one module that import each other, directly or not.
fn components(imports: &Imports) -> Vec<Vec<String>> {
    let reachable = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut next = vec![from.to_owned()];
        while let Some(module) = next.pop() {
            for imported in imports.get(&module).into_iter().flatten() {
                if seen.insert(imported.clone()) {
                    next.push(imported.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<_, _> =
        imports.keys().map(|module| (module.clone(), reachable(module))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (module, reached) in &all {
        if !reached.contains(module) || found.iter().any(|group| group.contains(module)) {
            continue;
        }
        let back = |other: &&String| all.get(*other).is_some_and(|it| it.contains(module));
        found.push(reached.iter().filter(back).cloned().collect());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_cycle_is_found_through_groups_folders_and_inline_paths_and_a_tree_is_none() {
        let tree = [
            source("s/lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
            source("s/a.rs", "use crate::{b::B, c};\n"),
            source(
                "s/b.rs",
                "// crate::a is only mentioned\n#[cfg(test)]\nmod tests { use crate::a::A; }\n",
            ),
            source("s/c/mod.rs", "mod d;\n"),
            source("s/c/d.rs", "use super::x;\n"),
        ];
        let check = |sources: &[Source]| cycles(&sources.iter().collect::<Vec<_>>(), "s");
        assert_eq!(check(&tree), Vec::<Vec<String>>::new());
        for (path, text) in [
            ("s/b.rs", "use crate::{\n    x as y,\n    a::{A, self},\n};\n"),
            ("s/b.rs", "fn f() -> super::a::A {}\n"),
            ("s/c/d.rs", "fn f() { crate::a::A::new() }\n"),
        ] {
            let mut knot = tree.iter().map(|it| source(&it.path, &it.text)).collect::<Vec<_>>();
            knot.retain(|it| it.path != path);
            knot.push(source(path, text));
            assert!(
                check(&knot).iter().any(|group| group.contains(&"a".to_owned())),
                "{path} {text}"
            );
        }
    }
}
