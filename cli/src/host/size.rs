//! Amounts of memory, as people write them.

use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// 2 MiB, the size of a superpage.
pub const SUPERPAGE: u64 = 2 << 20;
/// 4 KiB, the size of a page.
pub const PAGE: u64 = 4096;
/// One MiB.
pub const MIB: u64 = 1 << 20;

/// An amount of memory in bytes. Written as a number with a unit: `512M`, `1.5G`, `64KiB`; units are
/// powers of 1024, and fractions are those of whole bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub u64);

/// A text that is no amount of memory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not an amount of memory: write a number and a unit, such as 512M or 1.5G")]
pub struct SizeError(String);

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(error()),
        };
        let (whole, fraction) = number.split_once('.').map_or((number, None), |(whole, part)| (whole, Some(part)));
        let whole: u64 = whole.parse().map_err(|_| error())?;
        let part = fraction.map_or(Some(0), |digits| part_of(digits, 1 << shift)).ok_or_else(error)?;
        whole.checked_mul(1 << shift).and_then(|bytes| bytes.checked_add(part)).map(Size).ok_or_else(error)
    }
}

/// The bytes that decimals behind the point are of a unit; `None` if they are no digits, or no whole bytes.
fn part_of(digits: &str, unit: u128) -> Option<u64> {
    let is_number = (1..=20).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    let (part, whole) = (digits.parse::<u128>().ok().filter(|_| is_number)?, 10_u128.pow(digits.len() as u32));
    let bytes = part.checked_mul(unit)?;
    bytes.is_multiple_of(whole).then(|| u64::try_from(bytes / whole).ok()).flatten()
}

impl Size {
    /// Returns the text of exactly this amount, by the largest unit of which it is a multiple.
    #[must_use]
    pub fn exact(self) -> String {
        let unit = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")]
            .into_iter()
            .find(|(shift, _)| self.0 != 0 && self.0.is_multiple_of(1 << shift));
        unit.map_or_else(|| format!("{} bytes", self.0), |(shift, unit)| format!("{} {unit}", self.0 >> shift))
    }

    /// Reads the amount of a VM's or machine's RAM. A number without a unit is MiB, as other hypervisors have it.
    ///
    /// # Errors
    /// [`SizeError`].
    pub fn of_ram(text: &str) -> Result<Self, SizeError> {
        match text.trim().parse::<u64>() {
            Ok(number) => number.checked_mul(MIB).map(Self).ok_or_else(|| SizeError(text.to_owned())),
            Err(_) => text.parse(),
        }
    }
}

/// Splits `NAME:SIZE`. A last part that is no amount of memory belongs to the name.
///
/// # Errors
/// [`SizeError`], if the last part can only be meant as an amount: a number with a sign, or with a unit, such as `-5G` or `1.2.3G`.
pub fn split_size(text: &str) -> Result<(&str, Option<Size>), SizeError> {
    let Some((name, word)) = text.rsplit_once(':') else { return Ok((text, None)) };
    match word.parse() {
        Ok(size) => Ok((name, Some(size))),
        Err(why) if is_meant_as_size(word) => Err(why),
        Err(_) => Ok((text, None)),
    }
}

/// Returns whether a word is a number with a sign, or with a unit: no size, but no end of a file's name either.
fn is_meant_as_size(word: &str) -> bool {
    let unsigned = word.strip_prefix(['-', '+']);
    let text = unsigned.unwrap_or(word);
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let is_number = digits.starts_with(|first: char| first.is_ascii_digit())
        && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.' || byte == b',');
    let units = ["k", "kb", "kib", "m", "mb", "mib", "g", "gb", "gib", "t", "tb", "tib"];
    is_number && (units.contains(&unit.as_str()) || unsigned.is_some() && unit.is_empty())
}

impl TryFrom<String> for Size {
    type Error = SizeError;

    fn try_from(text: String) -> Result<Self, SizeError> {
        text.parse()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >= 1 << shift {
                let tenths = (u128::from(self.0) * 10) >> shift;
                return match (tenths / 10, tenths % 10) {
                    (whole, 0) => write!(f, "{whole} {unit}"),
                    (whole, part) => write!(f, "{whole}.{part} {unit}"),
                };
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!("512M".parse(), Ok(Size(512 << 20)));
        assert_eq!(" 2 GiB".parse(), Ok(Size(2 << 30)));
        assert_eq!("64kb".parse(), Ok(Size(64 << 10)));
        assert_eq!("1.5G".parse(), Ok(Size(3 << 29)));
        assert_eq!("0.0009765625M".parse(), Ok(Size(1 << 10)));
        for bad in [
            "",
            "M",
            "512",
            "-1M",
            "1.G",
            ".5G",
            "1.5.0G",
            "0.3K",
            "12X",
            "99999999999T",
            "1.00000000000000000000000000000000000000001T",
        ] {
            assert_eq!(bad.parse::<Size>(), Err(SizeError(bad.into())), "{bad}");
        }
    }

    #[test]
    fn names_and_sizes_are_split() {
        for (text, name, size) in
            [("a", "a", None), ("a:b:2G", "a:b", Some(Size(2 << 30))), ("a:3", "a:3", None), ("a:x5G", "a:x5G", None)]
        {
            assert_eq!(split_size(text), Ok((name, size)));
        }
        for bad in ["-5G", "+5g", "-5", "1.2.3G", "1,5G", "99999999T"] {
            assert_eq!(split_size(&format!("a:{bad}")), Err(SizeError(bad.into())));
        }
    }

    #[test]
    fn ram_without_a_unit_is_in_mib() {
        assert_eq!(Size::of_ram("512"), Ok(Size(512 << 20)));
        assert_eq!(Size::of_ram("1.5G"), Ok(Size(3 << 29)));
        for bad in ["", "-1", "18446744073709551615"] {
            assert!(Size::of_ram(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!(Size(512 << 20).to_string(), "512 MiB");
        assert_eq!(Size(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Size(12).to_string(), "12 bytes");
        assert_eq!(Size(131_075 << 10).exact(), "131075 KiB");
        assert_eq!(
            [Size(0), Size(1 << 40), Size((1 << 30) + 1)].map(Size::exact),
            ["0 bytes", "1 TiB", "1073741825 bytes"]
        );
    }
}
