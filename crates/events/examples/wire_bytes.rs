//! Bytes on the wire for each stored block, by transport: `bench/run promises --row json`.
//!
//! The same blocks are written by what writes them in use: vLLM's encoding in ZeroMQ frames, posts
//! of the Python sidecar (its own process, caught with its HTTP heads), gRPC messages with their
//! frames, and entries of a broker. Blocks come one at a time, as while decoding, and 64 in a run,
//! as after a prefill. TCP and the protocol between a broker and its clients are not counted.
#![allow(clippy::unwrap_used, reason = "a measuring program stops at the first surprise")]
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use prost::Message;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use wornpath_events::grpc::{Batch, Event, Report, Said, Stored, What};
use wornpath_events::wire::{
    Envelope, GroupAttention, HashForm, WireBatch, WireDialect, WireEvent, WireLayout, WireStored,
    encode,
};
use wornpath_index::EngineHash;

const BLOCK: usize = 16;
const BLOCKS: usize = 1_024;
const RUN: usize = 64;
const POD: &str = "qwen3-8b-0";
const TOPIC: &str = "kv@qwen3-8b-0@Qwen/Qwen3-8B";
/// Of Qwen3.
const VOCABULARY: u64 = 151_936;
/// What a block is, in fixed numbers: its name and its tokens.
const PLAIN: f64 = (8 + 4 * BLOCK) as f64;

/// Posts runs of blocks from standard input as the sidecar does, one run in each post.
const SIDECAR: &str = "
import json, sys
from wornpath.sidecar import pipe
from wornpath.sidecar.mirror import Run
from wornpath.sidecar.poster import Poster
steps = [[]]
for blocks, parent, tokens in json.load(sys.stdin):
    steps += [list(pipe.stored(Run(tuple(blocks), parent, tuple(tokens), 16, 'GPU', None, None))), []]
steps = iter([*steps, None])
Poster(lambda: next(steps), sys.argv[1], sys.argv[2], None, 1e9, None, 1 << 20).run()
";

/// Consecutive blocks of one prompt.
struct Run {
    blocks: Vec<u64>,
    parent: Option<u64>,
    tokens: Vec<u32>,
}

/// All blocks, in runs of so many.
fn runs(length: usize) -> Vec<Run> {
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    };
    let mut parent = None;
    let run = |_| {
        let blocks: Vec<u64> = (0..length).map(|_| random()).collect();
        let tokens = (0..length * BLOCK).map(|_| (random() % VOCABULARY) as u32).collect();
        let before = parent.replace(blocks[length - 1]);
        Run { blocks, parent: before, tokens }
    };
    (0..BLOCKS / length).map(run).collect()
}

/// The payload of a message, as vLLM 0.32 writes it.
fn payload(run: &Run) -> Vec<u8> {
    let blocks: Vec<_> = run.blocks.iter().copied().map(EngineHash).collect();
    let mut batch = WireBatch::default();
    batch.push(WireEvent::Stored(WireStored {
        group: Some(0),
        attention: GroupAttention::Full,
        ..WireStored::plain(&blocks, run.parent.map(EngineHash), &run.tokens)
    }));
    batch.sent_at = 1_763_500_000.25;
    batch.dp_rank = Some(0);
    let mut out = Vec::new();
    let dialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned };
    encode(&batch, dialect, &mut out);
    out
}

/// A frame of ZMTP: flags, a length of one byte or of eight, the body.
fn frame(body: &[u8]) -> usize {
    body.len() + if body.len() < 256 { 2 } else { 9 }
}

fn zeromq(runs: &[Run]) -> usize {
    let message = |run: &Run| frame(TOPIC.as_bytes()) + frame(&[0; 8]) + frame(&payload(run));
    runs.iter().map(message).sum()
}

fn broker(runs: &[Run]) -> usize {
    let entry = |(sequence, run): (u64, &Run)| {
        let payload = payload(run);
        let epoch = Some(1_763_500_000_000);
        let mut out = Vec::new();
        Envelope { pod: POD, epoch, sequence, payload: &payload }.write(&mut out);
        out.len()
    };
    (0..).zip(runs).map(entry).sum()
}

fn grpc(runs: &[Run]) -> usize {
    let message = |(sequence, run): (u64, &Run)| {
        let stored = Stored {
            blocks: run.blocks.clone(),
            parent: run.parent,
            tokens: run.tokens.clone(),
            block_size: BLOCK as u32,
            ..Stored::default()
        };
        let events = vec![Event { what: Some(What::Stored(stored)) }];
        let report = Report {
            pod: POD.to_owned(),
            epoch: Some(1_763_500_000_000),
            sequence: Some(sequence),
            said: Some(Said::Batch(Batch { events })),
        };
        // A frame of HTTP/2, and gRPC's flag and length.
        9 + 5 + report.encode_to_vec().len()
    };
    (0..).zip(runs).map(message).sum()
}

/// The bytes of all posts of stored blocks, heads included.
fn json(runs: &[Run]) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let router = format!("http://{}", listener.local_addr().unwrap());
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
    let mut sidecar = Command::new("python3")
        .args(["-c", SIDECAR, &router, POD])
        .env("PYTHONPATH", package)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let lines: Vec<_> = runs.iter().map(|run| (&run.blocks, run.parent, &run.tokens)).collect();
    sidecar.stdin.take().unwrap().write_all(&serde_json::to_vec(&lines).unwrap()).unwrap();
    let mut bytes = 0;
    loop {
        let (path, length) = post(&mut listener.accept().unwrap().0);
        match path.as_str() {
            "/events/stored" => bytes += length,
            "/events/bye" => break,
            _ => {}
        }
    }
    assert!(sidecar.wait().unwrap().success());
    bytes
}

/// The path and the length of a request, which is accepted.
fn post(client: &mut TcpStream) -> (String, usize) {
    let mut request = Vec::new();
    let mut buffer = [0; 1 << 16];
    loop {
        let read = client.read(&mut buffer).unwrap();
        assert!(read > 0, "the sidecar ends its request");
        request.extend_from_slice(&buffer[..read]);
        let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&request[..end]).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
        let all = end + 4 + length.trim().parse::<usize>().unwrap();
        if request.len() < all {
            continue;
        }
        client
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            .unwrap();
        return (head.split(' ').nth(1).unwrap().to_owned(), all);
    }
}

/// A transport: what is claimed of it, how to count, and the most that a block in a run may cost,
/// as a multiple of its name and its tokens in fixed numbers.
struct Way {
    name: &'static str,
    claim: &'static str,
    count: fn(&[Run]) -> usize,
    most: f64,
}

const WAYS: [Way; 4] = [
    Way { name: "zeromq", claim: "engines' own events are compact", count: zeromq, most: 1.5 },
    Way { name: "json", claim: "a sidecar's posts are small", count: json, most: 3.0 },
    Way { name: "grpc", claim: "a stream is smaller than posts", count: grpc, most: 1.0 },
    Way { name: "broker", claim: "a broker adds little", count: broker, most: 1.5 },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Vec<_> = arguments.iter().filter(|argument| *argument != "--row").collect();
    let each =
        |count: fn(&[Run]) -> usize, length: usize| count(&runs(length)) as f64 / BLOCKS as f64;
    let mut missed = 0;
    for Way { name, claim, count, most } in WAYS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| *wanted == name) {
            continue;
        }
        let single = each(count, 1);
        let many = each(count, RUN);
        let bar = most * PLAIN;
        let passes = many <= bar;
        missed += usize::from(!passes);
        println!(
            "| {name} | {claim} | bytes on the wire for a block of 16 tokens: {single:.0} alone, {many:.0} in a run of {RUN} | in a run at \
             most {bar:.0} | {} | `bench/run promises --row {name}` |",
            if passes { "pass" } else { "MISS" }
        );
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
