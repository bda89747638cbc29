//! `block_hash`: cuts the prompt's tokens into the model's blocks and hashes each with its whole
//! prefix.
//!
//! These hashes are the keys of the index. A last block that is not full has no hash: engines do
//! not share it.

use std::sync::Arc;

use wornpath_yaml::{Parameter, Takes};

use crate::models::Models;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{BlockHashes, Reads, Tokens, Writes};
use crate::stage::{Prepare, Preparing, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "block_hash",
    summary: "Hashes the prompt's full blocks, each with its whole prefix: the keys of the index.",
    parameters: &[
        Parameter::optional(
            "first_tokens",
            Takes::Whole(1, u64::MAX),
            "Hash only this many leading tokens, rounded down to whole blocks, but at least one block: a routing key instead of the whole prompt.",
        ),
        Parameter::with_default(
            "length_field",
            Takes::Text,
            "prefix_len",
            "With `first_tokens`: the body field with which a request sets another number.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "block_hash",
    make: Make::Prepare(make),
};

struct HashBlocks {
    tokens: Reads<Tokens>,
    blocks: Writes<BlockHashes>,
    models: Arc<Models>,
    first_tokens: Option<usize>,
    length_field: String,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    Ok(Box::new(HashBlocks {
        tokens: assembly.reads(),
        blocks: assembly.writes(),
        models: assembly.models(),
        first_tokens: assembly.maybe("first_tokens"),
        length_field: assembly.get("length_field"),
    }))
}

impl Prepare for HashBlocks {
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = preparing.request();
        let Some(model) = self.models.find(&request.model.base) else {
            let known: Vec<_> =
                self.models.all().iter().map(|model| model.name().as_str()).collect();
            let reason =
                format!("unknown model `{}`; available: {}", request.model.base, known.join(", "));
            return Err(Rejection::refused(404, reason));
        };
        let root = self.models.root(&request.model, request.salt.as_deref());
        let block_tokens = model.hasher().block_size().get();
        let most = self.first_tokens.map(|default| {
            let requested =
                request.fields.get(&self.length_field).and_then(serde_json::Value::as_u64);
            requested.map_or(default, |tokens| usize::try_from(tokens).unwrap_or(usize::MAX)).max(1)
        });
        preparing.derive(&self.tokens, &self.blocks, |Tokens(tokens), blocks| {
            // Limit to the prompt before rounding: a client may send any number. Rounding up would
            // hash tokens that the client said differ.
            let all = tokens.len();
            let whole = |most: usize| (most.min(all) / block_tokens).max(1) * block_tokens;
            let most = most.map_or(all, whole);
            let hashed = &tokens[..most.min(all)];
            model.hasher().hash_tokens(hashed, root, &mut blocks.chain);
            blocks.block_tokens = block_tokens;
            blocks.prompt_tokens = tokens.len();
        });
        Ok(())
    }
}
