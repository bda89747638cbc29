//! Reading other documents as profiles are read: YAML with places, declared parameters, and every problem
//! shown where it stands.

pub use crate::reference::parameters as parameter_table;
pub use crate::settings::{PluginSettings, SettingEntry, unknown_keys};
pub use crate::suggest::nearest;
pub use crate::yaml::{Node, Quoted, Yaml, parse};
