//! The `Retry-After` header: seconds, or a date.

use hyper::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use std::time::{Duration, SystemTime};

/// The longest rest that is believed; the breaker's longest rest is shorter anyway.
const MAX: Duration = Duration::from_secs(86_400);

/// When a retry may help, from now on.
///
/// A date is compared with the response's own `Date`, so that clocks need not agree; without one,
/// with this machine's clock.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = text(headers, &RETRY_AFTER)?;
    if let Ok(seconds) = text.parse::<f64>() {
        let is_time = seconds >= 0.0;
        return is_time.then(|| Duration::from_secs_f64(seconds.min(MAX.as_secs_f64())));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let sent = self::text(headers, &DATE).and_then(|date| httpdate::parse_http_date(date).ok());
    let rest = until.duration_since(sent.unwrap_or_else(now));
    Some(rest.unwrap_or_default().min(MAX))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

#[allow(clippy::disallowed_methods, reason = "the response has a date of the wall clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn of(value: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_str(value).unwrap());
        if let Some(date) = date {
            headers.insert(DATE, HeaderValue::from_str(date).unwrap());
        }
        retry_after(&headers)
    }

    #[test]
    fn seconds_are_read_and_nonsense_is_not() {
        assert_eq!(of(" 7 ", None), Some(Duration::from_secs(7)));
        assert_eq!(of("0.5", None), Some(Duration::from_millis(500)));
        assert_eq!(of("1e30", None), Some(MAX));
        for nonsense in ["-1", "NaN", "soon", ""] {
            assert_eq!(of(nonsense, None), None, "{nonsense}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }

    #[test]
    fn a_date_counts_from_the_date_of_the_response() {
        let sent = Some("Wed, 21 Oct 2015 07:28:00 GMT");
        let after = |date: &str| of(date, sent);
        assert_eq!(after("Wed, 21 Oct 2015 07:28:30 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(after("Wednesday, 21-Oct-15 07:29:00 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(after("Wed Oct 21 07:28:05 2015"), Some(Duration::from_secs(5)));
        assert_eq!(after("Wed, 21 Oct 2015 07:00:00 GMT"), Some(Duration::ZERO), "it has passed");
        assert_eq!(after("Wed, 21 Oct 2099 07:00:00 GMT"), Some(MAX));
    }

    #[test]
    fn a_date_of_a_response_without_a_date_counts_from_this_machines_clock() {
        let date = httpdate::fmt_http_date(now() + Duration::from_secs(3600));
        let rest = of(&date, None).unwrap();
        assert!((3500..=3600).contains(&rest.as_secs()), "{rest:?}");
        assert_eq!(of("Wed, 21 Oct 2015 07:28:00 GMT", None), Some(Duration::ZERO));
    }
}
