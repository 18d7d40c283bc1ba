//! Times and durations as people write them.

use std::time::Duration;

const DAY: i64 = 86_400;

/// Days since 1970 of a date (Hinnant's algorithm).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The number of days of a month, from 1 to 12.
fn days_of_month(year: i64, month: i64) -> i64 {
    let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    days(next_year, next_month, 1) - days(year, month, 1)
}

/// A time in nanoseconds since 1970, as UTC.
pub fn shown(nanoseconds: u64) -> String {
    let seconds = (nanoseconds / 1_000_000_000) as i64;
    let (since, of_day) = (seconds.div_euclid(DAY) + 719_468, seconds.rem_euclid(DAY));
    let era = since.div_euclid(146_097);
    let of_era = since.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let thousandths = nanoseconds / 1_000_000 % 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z")
}

/// Reads a time such as `2026-11-29T08:00:00Z`, `2026-11-29 08:00` (UTC) or `2026-11-29T10:00:00+02:00`, in
/// nanoseconds since 1970. A time without thousandths includes all of its second.
pub fn parse_time(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let numbers = |text: &str, by: char| text.split(by).map(|n| n.parse().ok()).collect::<Option<Vec<i64>>>();
    let date = numbers(date, '-').filter(|date| date.len() == 3)?;
    let (time, offset) = match time.find(['Z', '+', '-']) {
        None => (time, 0),
        Some(at) if &time[at..] == "Z" => (&time[..at], 0),
        Some(at) => {
            let parts = numbers(time[at..].get(1..)?, ':').filter(|parts| (1..=2).contains(&parts.len()))?;
            let (hours, minutes) = (parts[0], parts.get(1).copied().unwrap_or(0));
            if !(0..24).contains(&hours) || !(0..60).contains(&minutes) {
                return None;
            }
            let minutes = hours * 60 + minutes;
            (&time[..at], if time[at..].starts_with('-') { -minutes } else { minutes })
        }
    };
    let (time, fraction) = time.split_once('.').map_or((time, None), |(time, fraction)| (time, Some(fraction)));
    let time = numbers(time, ':').filter(|time| (2..=3).contains(&time.len()))?;
    let second = time.get(2).copied().unwrap_or(0);
    let is_one = (1970..10_000).contains(&date[0])
        && (1..=12).contains(&date[1])
        && (1..=days_of_month(date[0], date[1])).contains(&date[2])
        && (0..24).contains(&time[0])
        && (0..60).contains(&time[1])
        && (0..61).contains(&second);
    if !is_one {
        return None;
    }
    let seconds = days(date[0], date[1], date[2]) * DAY + time[0] * 3600 + (time[1] - offset) * 60 + second;
    let below = match fraction {
        None => 999_999_999,
        Some(digits) if digits.len() <= 9 && digits.bytes().all(|c| c.is_ascii_digit()) && !digits.is_empty() => {
            let known: u64 = digits.parse().ok()?;
            let unit = 10u64.pow(9 - digits.len() as u32);
            known * unit + unit - 1
        }
        Some(_) => return None,
    };
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(below)
}

/// Reads a duration such as `500ms`, `1s`, `15m`, `12h`, `30d` or `4w`.
///
/// # Errors
/// The sentence that says how one is written.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let unit = match &text[at..] {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 604_800_000,
        _ => 0,
    };
    let number = text[..at].parse().ok().filter(|_| unit > 0).and_then(|n: u64| n.checked_mul(unit));
    number.map(Duration::from_millis).ok_or_else(|| "a duration has the form 500ms, 1s, 15m, 12h, 30d or 4w".into())
}

/// Reads how often something happens: a duration that is not zero.
///
/// # Errors
/// The sentence that says how one is written.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if interval < Duration::from_millis(1) {
        return Err("an interval of nothing would never rest: choose 1ms or more".into());
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        for text in ["1970-01-01T00:00:00.000Z", "2000-02-29T23:59:59.999Z", "2026-11-29T08:16:37.250Z"] {
            assert_eq!(shown(parse_time(text).unwrap()), text);
        }
        let same = ["2026-11-29T08:00:00Z", "2026-11-29 08:00", "2026-11-29T10:00:00+02:00", "2026-11-29T03:30-04:30"];
        for text in same {
            assert_eq!(shown(parse_time(text).unwrap()), "2026-11-29T08:00:00.999Z", "{text}");
        }
        for bad in
            ["", "12", "2026-13-01", "2026-11-29T25:00", "2026-11-29T08:00:00.x", "yesterday", "2026-11-29T08:00+"]
        {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_month_has_its_own_days() {
        for good in ["2026-01-31", "2026-02-28", "2024-02-29", "2000-02-29", "2026-04-30", "2026-12-31"] {
            assert!(parse_time(good).is_some(), "{good}");
        }
        for bad in ["2026-02-31", "2026-02-29", "2100-02-29", "2026-04-31", "2026-12-32", "2026-01-00"] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_offset_is_less_than_a_day() {
        assert!(parse_time("2026-11-29T08:00+23:59").is_some());
        for offset in ["+24:00", "-24", "+00:60", "+9223372036854775807", "+1:9223372036854775807", "+-5", "+5:-5"] {
            assert_eq!(parse_time(&format!("2026-11-29T08:00{offset}")), None, "{offset}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(parse_duration("30d").unwrap(), Duration::from_secs(30 * 86_400));
        for bad in ["", "5", "s", "1y", "-1s", "99999999999999999w"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert!(parse_interval("0s").is_err() && parse_interval("0ms").is_err() && parse_interval("1").is_err());
        assert_eq!(parse_interval("1ms").unwrap(), Duration::from_millis(1));
    }
}
