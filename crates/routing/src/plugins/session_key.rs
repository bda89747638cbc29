//! `session_key`: which session a request belongs to, by a header, a cookie or a field of the body.

use wornpath_yaml::{Parameter, Takes};

use super::rendezvous::affinity;
use super::source::DepthSource;
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::Writes;
use crate::stage::{Prepare, Preparing, Rejection};
use crate::values::SessionKey;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "session_key",
    summary: "Names the request's session by a header, else a cookie, else a field of the body. \
              Sessions of different tenants are different.",
    parameters: &[
        Parameter::optional("header", Takes::Text, "The header that names the session."),
        Parameter::optional("cookie", Takes::Text, "The cookie that names the session."),
        Parameter::optional(
            "field",
            Takes::Text,
            "The field of the body that names the session; `metadata.session` for one inside another.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "session_key: {header: x-session-id, field: user}",
    make: Make::Prepare(make),
};

struct SessionKeyFrom {
    session: Writes<SessionKey>,
    sources: Vec<DepthSource>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    let header = assembly.maybe::<String>("header").map(|name| DepthSource::header(&name));
    let cookie = assembly.maybe::<String>("cookie").map(|name| DepthSource::cookie(&name));
    let field = assembly.maybe::<String>("field").map(|path| DepthSource::field(&path));
    let sources: Vec<_> = [header, cookie, field].into_iter().flatten().collect();
    if sources.is_empty() {
        let cure = "give `header`, `cookie` or `field`, or several of them";
        return Err(assembly.refuse("header", "nothing says where the session's name is", cure));
    }
    Ok(Box::new(SessionKeyFrom { session: assembly.writes(), sources }))
}

impl Prepare for SessionKeyFrom {
    fn prepare(&self, scene: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = scene.request();
        let tenant = request.tenant.as_ref().map_or(0, Name::key);
        let key = |text: &str| affinity(Name::from(text).key(), tenant);
        let found = self.sources.iter().find_map(|source| source.with_text(request, key));
        if let Some(found) = found {
            scene.write(&self.session).0 = found;
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
        let mut rehearsal = Harness::of(1);
        rehearsal.request.headers =
            headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        rehearsal.request.tenant = tenant.map(Name::from);
        rehearsal.prepared(&YAML).unwrap()
    }

    #[test]
    fn the_header_comes_before_the_cookie_and_tenants_do_not_share_sessions() {
        let both = key(&[("x-session", "a"), ("cookie", "sid=b")], None);
        assert_eq!(both, key(&[("x-session", "a")], None));
        assert_ne!(both, key(&[("cookie", "sid=b")], None));
        assert_ne!(both, key(&[("x-session", "a")], Some("t")));
    }

    #[test]
    fn a_request_without_session_has_none() {
        assert_eq!(key(&[("x-session", "")], None), None);
    }

    #[test]
    fn a_key_from_nowhere_is_refused() {
        assert_eq!(
            Harness::complaint(Stage::Prepare, "session_key"),
            "`session_key`: nothing says where the session's name is"
        );
    }
}
