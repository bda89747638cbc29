//! `session_key`: derives the session key of a request from a header, a cookie or a body field.
//!
//! The tenant is part of the key, so that tenants who choose the same session name do not share a
//! pod's affinity. The first source that the request has wins.

use wornpath_yaml::{Parameter, Takes};

use super::rendezvous::affinity;
use super::value_source::ValueSource;
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{SessionKey, Writes};
use crate::stage::{Prepare, Preparing, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "session_key",
    summary: "Derives the session key from a header, else a cookie, else a body field. The same name in two tenants is \
              two sessions.",
    parameters: &[
        Parameter::optional("header", Takes::Text, "Header with the session's name."),
        Parameter::optional("cookie", Takes::Text, "Cookie with the session's name."),
        Parameter::optional(
            "field",
            Takes::Text,
            "Body field with the session's name; `metadata.session` for a nested field.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "session_key: {header: x-session-id, field: user}",
    make: Make::Prepare(make),
};

struct DeriveSessionKey {
    session: Writes<SessionKey>,
    sources: Vec<ValueSource>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    let header = assembly.maybe::<String>("header").map(|name| ValueSource::header(&name));
    let cookie = assembly.maybe::<String>("cookie").map(|name| ValueSource::cookie(&name));
    let field = assembly.maybe::<String>("field").map(|path| ValueSource::field(&path));
    let sources: Vec<_> = [header, cookie, field].into_iter().flatten().collect();
    if sources.is_empty() {
        let cure = "set `header`, `cookie` or `field`, or several of them";
        return Err(assembly.refuse("header", "no source of the session key is set", cure));
    }
    Ok(Box::new(DeriveSessionKey { session: assembly.writes(), sources }))
}

impl Prepare for DeriveSessionKey {
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = preparing.request();
        let tenant = request.tenant.as_ref().map_or(0, Name::key);
        let key = |text: &str| affinity(Name::from(text).key(), tenant);
        let found = self.sources.iter().find_map(|source| source.with_text(request, key));
        if let Some(found) = found {
            preparing.write(&self.session).0 = found;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    const YAML: [&str; 1] = ["session_key: {header: X-Session, cookie: sid, field: user}"];

    fn key(headers: &[(&str, &str)], tenant: Option<&str>) -> Option<SessionKey> {
        let mut harness = Harness::of(1);
        harness.request.headers =
            headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        harness.request.tenant = tenant.map(Name::from);
        harness.prepared(&YAML).unwrap()
    }

    #[test]
    fn the_header_comes_before_the_cookie_and_tenants_do_not_share_sessions() {
        let both = key(&[("x-session", "a"), ("cookie", "sid=b")], None);
        assert_eq!(both, key(&[("x-session", "a")], None));
        assert_ne!(both, key(&[("cookie", "sid=b")], None));
        assert_ne!(both, key(&[("x-session", "a")], Some("t")));
    }

    #[test]
    fn a_request_without_a_session_name_has_no_key() {
        assert_eq!(key(&[("x-session", "")], None), None);
    }

    #[test]
    fn a_session_key_without_a_source_is_refused() {
        assert_eq!(
            Harness::assembly_error(Stage::Prepare, "session_key"),
            "`session_key`: no source of the session key is set"
        );
    }
}
