//! Converts a valid configuration to the settings of a gateway.

use crate::config::Config;
use crate::pod::PodConfig;
use crate::settings::{ModelSettings, Settings};
use crate::tokenizers::{TokenizerConfigError, Tokenizers};

impl Config {
    /// The settings, with the tokenizers of all models loaded.
    ///
    /// # Errors
    /// If a tokenizer cannot be loaded.
    pub fn settings(&self, tokenizers: &mut Tokenizers) -> Result<Settings, TokenizerConfigError> {
        let mut settings = self.settings.clone();
        for model in &self.models {
            settings.models.push(ModelSettings {
                name: model.name.clone(),
                block_size: model.block_size.into(),
                tokenizer: tokenizers.get(&model.tokenizer)?,
                aliases: model.aliases.clone(),
            });
        }
        settings.pods = self.pods.iter().flat_map(PodConfig::per_rank).collect();
        Ok(settings)
    }
}
