//! `strftime_now` for templates that print the date; the caller passes the time.
//!
//! English names, as in the C locale that engines run in.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::Offset;

/// A wall-clock time, in seconds since 1970-01-01 00:00:00 of the same clock.
///
/// Engines print their local time: a caller adds the engines' offset from UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WallTime(pub i64);

impl WallTime {
    /// Formats like Python's `strftime`; an unknown directive stays unchanged.
    #[must_use]
    pub fn format(self, format: &str) -> String {
        // Four-digit years are all that the library has, and all that a template prints.
        let seconds = self.0.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        let time = Timestamp::from_second(seconds)
            .map_or(DateTime::ZERO, |time| Offset::UTC.to_datetime(time));
        let rules = Config::new().lenient(true).custom(PosixCustom::new());
        let broken_down = BrokenDownTime::from(time);
        broken_down.to_string_with_config(&rules, format).unwrap_or_else(|_| format.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expectations printed by Python's `datetime.strftime`.
    #[test]
    fn dates_print_as_python_prints_them() {
        let all = "%Y-%m-%d %y %b %B %a %A %j %w %H:%M:%S %I %p %-d %-m %-H %-j %%";
        for (seconds, expected) in [
            (0, "1970-01-01 70 Jan January Thu Thursday 001 4 00:00:00 12 AM 1 1 0 1 %"),
            (
                951_782_399,
                "2000-02-28 00 Feb February Mon Monday 059 1 23:59:59 11 PM 28 2 23 59 %",
            ),
            (
                951_868_799,
                "2000-02-29 00 Feb February Tue Tuesday 060 2 23:59:59 11 PM 29 2 23 60 %",
            ),
            (
                1_798_718_400,
                "2026-12-31 26 Dec December Thu Thursday 365 4 12:00:00 12 PM 31 12 12 365 %",
            ),
            (
                1_735_603_200,
                "2024-12-31 24 Dec December Tue Tuesday 366 2 00:00:00 12 AM 31 12 0 366 %",
            ),
        ] {
            assert_eq!(WallTime(seconds).format(all), expected);
        }
    }

    #[test]
    fn combined_directives_print_as_python_prints_them_in_the_c_locale() {
        assert_eq!(
            WallTime(951_782_399).format("%F|%T|%X|%R|%D|%x|%c|%e|%h"),
            "2000-02-28|23:59:59|23:59:59|23:59|02/28/00|02/28/00|Mon Feb 28 23:59:59 2000|28|Feb"
        );
        assert_eq!(WallTime(0).format("%e|%-e|%-I|%-M"), " 1|1|12|0");
    }

    #[test]
    fn an_unknown_directive_stays_unchanged() {
        assert_eq!(WallTime(0).format("%Q %-Q %- 100%"), "%Q %-Q %- 100%");
    }
}
