//! Fleet descriptions in files, and the tokenizers that they name.

use anyhow::Context;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use wornpath_config::TokenizerFiles;
use wornpath_index::Moment;
use wornpath_routing::fleet_spec::{BuiltFleet, FleetSpec};
use wornpath_routing::{ByteTokenizer, Problems, Tokenize};

/// Reads a fleet description, or lists all of its problems.
pub(crate) fn read_fleet(path: &Path) -> anyhow::Result<Result<FleetSpec, Problems>> {
    let file = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
    Ok(FleetSpec::read(&file.to_string(), &text))
}

/// Builds a fleet from its description; paths of tokenizers are relative to the file.
pub(crate) fn build(path: &Path, spec: &FleetSpec, now: Moment) -> anyhow::Result<BuiltFleet> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut tokenizers: Vec<(&str, Arc<dyn Tokenize>)> = Vec::new();
    for name in spec.models.iter().filter_map(|model| model.tokenizer.as_deref()) {
        tokenizers.push((name, tokenizer(folder, name)?));
    }
    let find = |name: &str| {
        tokenizers.iter().find(|(known, _)| *known == name).map(|(_, found)| Arc::clone(found))
    };
    Ok(spec.build(now, find)?)
}

/// Loads the tokenizer in the folder `name`, relative to `base`; `bytes` is the byte tokenizer.
pub(crate) fn tokenizer(base: &Path, name: &str) -> anyhow::Result<Arc<dyn Tokenize>> {
    Ok(match name {
        "bytes" => Arc::new(ByteTokenizer),
        folder => Arc::new(TokenizerFiles::read(&base.join(folder))?.load()?),
    })
}
