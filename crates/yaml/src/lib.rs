//! YAML documents with positions, typed settings and diagnostics.
//!
//! Profiles, fleets and the gateway's configuration are read the same way. [`parse`] gives a tree
//! whose every value knows its line and column. Settings are declared as data ([`Parameter`]) and
//! read with [`SettingValues::read`], which checks types and bounds and fills in defaults. Every
//! error is a [`Problem`] with a position and a cure, and a document reports all of them at once
//! ([`Problems`]), printed the way a compiler prints errors.
//!
//! Only the part of YAML that has one meaning is accepted: no anchors, aliases, tags or second
//! documents, and no key twice.
//!
//! ```
//! use wornpath_yaml::{Parameter, Problems, SettingEntry, SettingValues, Takes, parse};
//!
//! const LIMITS: &[Parameter] =
//!     &[Parameter::with_default("body", Takes::Size(1, 1 << 30), "16MiB", "The largest body.")];
//!
//! let text = "limits: {body: 1MB}\n";
//! let root = parse(text)?;
//! let entry = SettingEntry::read(&root, "section")?;
//! let mut problems = Vec::new();
//! let settings = SettingValues::read(&entry, LIMITS, &[], &mut problems);
//! assert_eq!(settings.maybe::<u64>("body"), None, "a refused value is absent");
//! let report = Problems::new("configuration", "a.yaml", text, problems).to_string();
//! assert!(report.contains("a.yaml:1:16"), "{report}");
//! # Ok::<(), wornpath_yaml::Problem>(())
//! ```
#![forbid(unsafe_code)]

mod node;
mod parameter;
mod problem;
mod settings;
mod span;
pub mod writer;

pub use node::{Node, Quoted, Yaml, parse};
pub use parameter::{Absent, FromValue, Parameter, Takes, Value, json, number, parameter_table};
pub use problem::{Problem, ProblemKind, Problems};
pub use settings::nearest;
pub use settings::{GivenSetting, Setting, SettingEntry, SettingValues, unknown_keys};
pub use span::Span;
