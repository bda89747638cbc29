//! Which of the last requests an operator asks for.

use percent_encoding::percent_decode_str;

use crate::call::AdminError;
use crate::finished::{RecentRequest, cause};

/// The parameters of a search, with their descriptions.
pub(crate) const PARAMETERS: &[(&str, &str, &str)] = &[
    ("last", "integer", "Maximum number of requests; 20 by default."),
    ("view", "string", "`rows` leaves out explanations and calls."),
    ("model", "string", "The base model."),
    ("tenant", "string", "The tenant."),
    ("pod", "string", "The pod that answered, or that computed the prompt."),
    ("status", "string", "A status such as `503`, a class such as `5xx`, or `failed`."),
    (
        "cause",
        "string",
        "What a failure is about: `no_pod`, `saturated`, `expired`, `shutting_down`, `calls_failed`, `request`, `engine` or `broken`.",
    ),
    ("from", "number", "Requests that ended at this time or later, in seconds since 1970."),
    ("to", "number", "Requests that ended before this time, in seconds since 1970."),
];

/// A search.
#[derive(Default)]
pub(crate) struct DecisionSearch {
    pub(crate) last: usize,
    pub(crate) view: DecisionView,
    model: Option<String>,
    tenant: Option<String>,
    pod: Option<String>,
    status: Option<WantedStatus>,
    cause: Option<String>,
    from: Option<f64>,
    to: Option<f64>,
}

/// How much of each request is shown.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DecisionView {
    #[default]
    Whole,
    /// Without explanations and calls.
    Rows,
}

#[derive(Clone, Copy)]
enum WantedStatus {
    One(u16),
    /// 4 for all from 400 to 499.
    Class(u16),
    Failed,
}

impl DecisionSearch {
    /// Reads the query of a request.
    ///
    /// # Errors
    /// If a parameter is unknown, or its value has the wrong form.
    pub(crate) fn read(query: &str) -> Result<Self, AdminError> {
        let mut search = Self { last: 20, ..Self::default() };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            if value.is_empty() {
                continue;
            }
            match name {
                "last" => search.last = number(name, &value)?,
                "view" => search.view = DecisionView::read(&value)?,
                "model" => search.model = Some(value),
                "tenant" => search.tenant = Some(value),
                "pod" => search.pod = Some(value),
                "status" => search.status = Some(WantedStatus::read(&value)?),
                "cause" => search.cause = Some(value),
                "from" => search.from = Some(number(name, &value)?),
                "to" => search.to = Some(number(name, &value)?),
                _ => {
                    let known: Vec<_> = PARAMETERS.iter().map(|(name, ..)| *name).collect();
                    let known = known.join(", ");
                    let message = format!("unknown parameter `{name}`; available: {known}");
                    return Err(AdminError::new(400, message));
                }
            }
        }
        Ok(search)
    }

    /// Whether a request is asked for.
    pub(crate) fn wants(&self, request: &RecentRequest) -> bool {
        let record = &request.summary;
        let is_or_any = |wanted: &Option<String>, name: Option<&str>| {
            wanted.as_ref().is_none_or(|wanted| Some(wanted.as_str()) == name)
        };
        let answered = record.pod.as_ref().map(|(_, name)| name.as_str());
        let computed = record.computed().0.map(|name| name.as_str());
        is_or_any(&self.model, Some(record.model.as_str()))
            && is_or_any(&self.tenant, record.tenant.as_ref().map(|name| name.as_str()))
            && (is_or_any(&self.pod, answered) || is_or_any(&self.pod, computed))
            && self.status.is_none_or(|status| status.is_of(record.status))
            && is_or_any(&self.cause, Some(cause(record)))
            && self.from.is_none_or(|from| request.ended_at >= from)
            && self.to.is_none_or(|to| request.ended_at < to)
    }
}

impl DecisionView {
    fn read(text: &str) -> Result<Self, AdminError> {
        match text {
            "whole" => Ok(Self::Whole),
            "rows" => Ok(Self::Rows),
            other => {
                let message = format!("`view` is `{other}`; it must be `whole` or `rows`");
                Err(AdminError::new(400, message))
            }
        }
    }
}

impl WantedStatus {
    fn read(text: &str) -> Result<Self, AdminError> {
        if text == "failed" {
            return Ok(Self::Failed);
        }
        if let Some(class) = text.strip_suffix("xx") {
            return Ok(Self::Class(number("status", class)?));
        }
        Ok(Self::One(number("status", text)?))
    }

    const fn is_of(self, status: u16) -> bool {
        match self {
            Self::One(wanted) => wanted == status,
            Self::Class(class) => status / 100 == class,
            Self::Failed => status >= 400,
        }
    }
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, AdminError> {
    let wrong = |_| AdminError::new(400, format!("`{name}` is `{text}`; it must be a number"));
    text.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_gateway::Api;
    use wornpath_gateway::observe::summary::RequestSummary;

    fn found(query: &str) -> bool {
        let summary = RequestSummary {
            model: "m".into(),
            tenant: Some("acme & co".into()),
            status: 503,
            ..RequestSummary::new("r", Api::CHAT)
        };
        let request = RecentRequest { number: 1, ended_at: 1000.5, summary };
        DecisionSearch::read(query).ok().is_some_and(|search| search.wants(&request))
    }

    #[test]
    fn every_parameter_narrows_the_search_and_an_empty_one_does_not() {
        for query in [
            "",
            "status=503",
            "status=5xx&model=m",
            "status=failed&tenant=acme%20%26%20co",
            "from=1000&to=1001",
            "model=&pod=",
        ] {
            assert!(found(query), "{query}");
        }
        for query in
            ["status=429", "status=4xx", "model=n", "tenant=a", "pod=a", "from=1001", "to=1000"]
        {
            assert!(!found(query), "{query}");
        }
    }

    #[test]
    fn unknown_parameters_and_values_are_refused() {
        for query in ["state=503", "status=bad", "from=noon", "last=-1"] {
            let error = DecisionSearch::read(query).err().map(|error| error.status);
            assert_eq!(error, Some(400), "{query}");
        }
    }
}
