//! The Rust messages are generated from the proto files, here and not while the crate is built:
//! building needs neither protoc nor a compiler of proto files.

use std::fs;
use std::path::Path;

const FILES: [(&str, &str, &str); 2] = [
    ("ext_proc.proto", "envoy.service.ext_proc.v3.rs", "src/ext_proc/proto.rs"),
    ("health.proto", "grpc.health.v1.rs", "src/ext_proc/health_proto.rs"),
];

const UPDATE: &str = "UPDATE=1 cargo test -p wornpath-gateway --features grpc --test all proto";

#[test]
fn the_messages_are_those_of_the_proto_files() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder =
        std::env::temp_dir().join(format!("wornpath-gateway-proto-{}", std::process::id()));
    for (proto, generated, path) in FILES {
        let files = protox::compile([proto], [here.join("proto")]).unwrap();
        fs::create_dir_all(&folder).unwrap();
        let mut config = prost_build::Config::new();
        // Bodies are slices of the message that brought them, not copies.
        config.bytes(["."]).out_dir(&folder).compile_fds(files).unwrap();
        let generated = fs::read_to_string(folder.join(generated)).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let expected = format!(
            "//! The messages of `proto/{proto}`, generated from it: do not edit. A test compares \
             them, and\n//! `{UPDATE}` writes them again.\n\n{generated}"
        );
        let path = here.join(path);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &expected).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == expected, "{} is not current; write it: `{UPDATE}`", path.display());
    }
}
