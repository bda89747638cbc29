//! Names of repositories, redirections and checksums.

use super::*;
use serde_json::json;

fn origin(root: &str) -> ModelOrigin {
    ModelOrigin { root: Some(root.to_owned()), ..ModelOrigin::default() }
}

#[test]
fn a_repository_is_named_by_what_may_stand_in_a_url_and_a_folder() {
    for good in ["Qwen/Qwen3-8B", "gpt2", "meta-llama/Llama-3.1_8B"] {
        assert_eq!(Repository::of(&origin(good)).unwrap().name, good);
    }
    for bad in ["", "a/b/c", "../x", "a/..", "a//b", "/abs", "./a", "a b", "a?b", "-a/b", "a/b%2F"]
    {
        let refused = Repository::of(&origin(bad));
        assert!(matches!(refused, Err(NotFound::Final(_))), "{bad}: {refused:?}");
    }
    let of_branch = ModelOrigin { revision: Some("refs/pr/1".into()), ..origin("a/b") };
    assert_eq!(Repository::of(&of_branch).unwrap().to_string(), "a/b (refs/pr/1)");
    let escaping = ModelOrigin { revision: Some("../../x".into()), ..origin("a/b") };
    assert!(Repository::of(&escaping).is_err());
}

#[test]
fn a_redirection_leads_to_another_host_or_path_and_never_out_of_tls() {
    let from = "https://hub.example/a/b/resolve/c/f";
    assert_eq!(redirected(from, "/d?e=1").unwrap(), "https://hub.example/d?e=1");
    assert_eq!(redirected(from, "https://cdn.example/x").unwrap(), "https://cdn.example/x");
    assert!(redirected(from, "http://cdn.example/x").is_err());
    assert!(redirected(from, "//cdn.example/x").is_err(), "neither a path nor a URL");
    assert_eq!(redirected("http://127.0.0.1:1/f", "http://b:2/x").unwrap(), "http://b:2/x");
}

/// The checksums are those that git and `sha256sum` print for the same bytes.
#[test]
fn a_file_is_checked_as_a_git_blob_or_by_its_sha256() {
    let blob = json!({"size": 3, "blobId": "F2BA8F84AB5C1BCE84A7B441CB1959CFC7093B7F"});
    let large = json!({
        "size": 130, "blobId": "00", "lfs": {
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "size": 3,
        },
    });
    for listed in [blob, large] {
        let file = ListedFile::read(&listed).unwrap();
        assert_eq!(file.bytes, 3);
        assert!(file.is_content(b"abc") && !file.is_content(b"abd"), "{listed}");
    }
    assert!(ListedFile::read(&json!({"size": 3})).is_none(), "nothing to check it by");
}
