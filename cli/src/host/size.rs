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

/// An amount of memory in bytes. Written as a number with a unit: `512M`, `2G`, `64KiB`; units are
/// powers of 1024.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub u64);

/// A text that is no amount of memory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not an amount of memory: write a whole number and a unit, such as 512M or 2G")]
pub struct SizeError(String);

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(error()),
        };
        let number: u64 = number.parse().map_err(|_| error())?;
        number.checked_mul(1 << shift).map(Size).ok_or_else(error)
    }
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
        for bad in ["", "M", "512", "-1M", "1.5G", "12X", "99999999999T"] {
            assert_eq!(bad.parse::<Size>(), Err(SizeError(bad.into())), "{bad}");
        }
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!(Size(512 << 20).to_string(), "512 MiB");
        assert_eq!(Size(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Size(12).to_string(), "12 bytes");
    }
}
