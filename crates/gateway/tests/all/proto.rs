//! The Rust messages are generated from the proto files, here and not while the crate is built:
//! building needs neither protoc nor a compiler of proto files.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The proto file, the generated file, its path, and which fields are slices of the message that
/// brought them, not copies.
const FILES: [(&str, &str, &str, &[&str]); 3] = [
    ("ext_proc.proto", "envoy.service.ext_proc.v3.rs", "src/ext_proc/proto.rs", &["."]),
    ("health.proto", "grpc.health.v1.rs", "src/ext_proc/health_proto.rs", &["."]),
    ("otlp.proto", "otlp.rs", "src/observe/otlp/messages.rs", &[]),
];

const UPDATE: &str = "UPDATE=1 cargo test -p wornpath-gateway --test all proto";

#[test]
fn the_messages_are_those_of_the_proto_files() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder =
        std::env::temp_dir().join(format!("wornpath-gateway-proto-{}", std::process::id()));
    for (proto, generated, path, slices) in FILES {
        let files = protox::compile([proto], [here.join("proto")]).unwrap();
        fs::create_dir_all(&folder).unwrap();
        let mut config = prost_build::Config::new();
        config.bytes(slices).out_dir(&folder).compile_fds(files).unwrap();
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

/// The numbers and types of our fields are those that OpenTelemetry publishes, in Python.
#[test]
fn the_fields_of_otlp_are_those_of_the_protocol() {
    let has = |probe| {
        let probe = Command::new("python3").args(["-c", probe]).stderr(Stdio::null()).status();
        probe.is_ok_and(|status| status.success())
    };
    if !has("import opentelemetry.proto.collector.trace.v1, google.rpc") {
        let is_required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
        assert!(!is_required, "python3 without opentelemetry-proto or googleapis-common-protos");
        eprintln!("SKIPPED: python3 without opentelemetry-proto or googleapis-common-protos");
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compiler = protox::Compiler::new([here.join("proto")]).unwrap();
    let ours = compiler.open_file("otlp.proto").unwrap().encode_file_descriptor_set();
    let script = here.join("tests/all/otlp_fields.py");
    let mut python = Command::new("python3");
    python.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().unwrap();
    python.stdin.take().unwrap().write_all(&ours).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "the reason is above");
    let compared: usize = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let declared = fs::read_to_string(here.join("proto/otlp.proto")).unwrap();
    // A field has a type before its name; a value of an enum does not.
    let is_field = |line: &&str| {
        let declared = line.strip_prefix("  ").and_then(|line| line.split_once(" = "));
        declared.is_some_and(|(declared, _)| declared.trim().contains(' '))
    };
    let fields = declared.lines().filter(is_field).count();
    // The three of the response stand for those of two responses.
    assert_eq!(compared, fields + 3, "a message that no export reaches");
}
