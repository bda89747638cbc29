//! Addresses that the gateway cannot bind: which option or key chooses another.

use crate::address::unbound;
use wornpath_admin::StartError;
use wornpath_gateway::{Front, ServeError};

/// The error, with its cure if an address cannot be bound.
pub(super) fn explained(error: ServeError) -> anyhow::Error {
    let refused = match &error {
        ServeError::Listen { front, address, cause } => {
            let setting = match front {
                Front::Client => "--port or `listen.client`",
                Front::Epp => "--epp or `listen.epp`",
                Front::EppHealth => "--epp-health or `health` of `listen.epp`",
                Front::Exchange => "`listen` of `exchange`",
            };
            Some(unbound(*address, front.callers(), cause, setting))
        }
        ServeError::Setup(error) => match error.downcast_ref() {
            Some(StartError::Listen { address, cause }) => {
                Some(unbound(*address, "operators", cause, "--admin or `listen.admin`"))
            }
            Some(StartError::Events { address, cause }) => {
                Some(unbound(*address, "pushed events", cause, "`listen.events`"))
            }
            _ => None,
        },
        _ => None,
    };
    refused.unwrap_or_else(|| error.into())
}
