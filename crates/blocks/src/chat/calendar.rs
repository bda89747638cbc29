//! `strftime_now` for templates that print the date; the caller passes the time.
//!
//! The proleptic Gregorian calendar by Howard Hinnant's days-from-civil arithmetic; English names,
//! as in the C locale that engines run in.

/// A wall-clock time, in seconds since 1970-01-01 00:00:00 of the same clock.
///
/// Engines print their local time: a caller adds the engines' offset from UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WallTime(pub i64);

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

struct Civil {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    day_of_year: i64,
}

impl WallTime {
    /// Formats like Python's `strftime`; an uncommon directive stays unchanged.
    #[must_use]
    pub fn format(self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match rest.next() {
                Some('-') => match rest.next() {
                    Some(directive) => out.push_str(unpadded(&self.directive(directive, "%-"))),
                    None => out.push_str("%-"),
                },
                Some(directive) => out.push_str(&self.directive(directive, "%")),
                None => out.push('%'),
            }
        }
        out
    }

    fn directive(self, directive: char, prefix: &str) -> String {
        let civil = self.civil();
        let second = self.0.rem_euclid(86_400);
        let hour = second / 3600;
        let minute = second / 60 % 60;
        let hour12 = (hour + 11) % 12 + 1;
        match directive {
            'Y' => civil.year.to_string(),
            'y' => format!("{:02}", civil.year.rem_euclid(100)),
            'm' => format!("{:02}", civil.month),
            'd' => format!("{:02}", civil.day),
            'e' => format!("{:2}", civil.day),
            'j' => format!("{:03}", civil.day_of_year),
            'B' => MONTHS[civil.month - 1].to_owned(),
            'b' | 'h' => MONTHS[civil.month - 1][..3].to_owned(),
            'A' => DAYS[civil.weekday].to_owned(),
            'a' => DAYS[civil.weekday][..3].to_owned(),
            'w' => civil.weekday.to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour12:02}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{:02}", second % 60),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => self.format("%Y-%m-%d"),
            'T' | 'X' => self.format("%H:%M:%S"),
            'R' => self.format("%H:%M"),
            'D' | 'x' => self.format("%m/%d/%y"),
            'c' => self.format("%a %b %e %H:%M:%S %Y"),
            '%' => "%".to_owned(),
            other => format!("{prefix}{other}"),
        }
    }

    fn civil(self) -> Civil {
        let days = self.0.div_euclid(86_400);
        // Years start in March here, so that the leap day is the last day of a year.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
        let day_of_year = if month <= 2 { of_year - 305 } else { of_year + 60 + leap };
        Civil {
            year,
            month: month as usize,
            day,
            weekday: (days + 4).rem_euclid(7) as usize,
            day_of_year,
        }
    }
}

fn unpadded(text: &str) -> &str {
    let trimmed = text.trim_start_matches(['0', ' ']);
    if trimmed.is_empty() { &text[text.len().saturating_sub(1)..] } else { trimmed }
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
    fn an_unknown_directive_stays_unchanged() {
        assert_eq!(WallTime(0).format("%Q %-Q %- 100%"), "%Q %-Q %- 100%");
    }
}
