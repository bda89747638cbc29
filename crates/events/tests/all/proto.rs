//! The Rust messages are generated from the proto file, here and not while the crate is built:
//! building needs neither protoc nor a compiler of proto files.

use std::fs;
use std::path::Path;

const HEADER: &str = "\
//! The messages of `proto/events.proto`, generated from it: do not edit. A test compares them, and
//! `UPDATE=1 cargo test -p wornpath-events --features grpc` writes them again.

";

#[test]
fn the_messages_are_those_of_the_proto_file() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile(["events.proto"], [here.join("proto")]).unwrap();
    let folder = std::env::temp_dir().join(format!("wornpath-proto-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    prost_build::Config::new().out_dir(&folder).compile_fds(files).unwrap();
    let generated = fs::read_to_string(folder.join("wornpath.events.v1.rs")).unwrap();
    fs::remove_dir_all(folder).unwrap();
    let expected = format!("{HEADER}{generated}");
    let path = here.join("src/push/proto.rs");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap() == expected,
        "src/push/proto.rs is not current; write it with \
         `UPDATE=1 cargo test -p wornpath-events --features grpc`"
    );
}
