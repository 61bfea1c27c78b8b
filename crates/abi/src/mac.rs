//! Addresses on an Ethernet.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// An address of a network card, or of several (IEEE 802, clause 8).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Returns whether it is no card's, but a group's: so is the one of all.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether a card can have it: it is no group's, and not nothing.
    #[must_use]
    pub const fn is_card(self) -> bool {
        !self.is_group() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, last] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{last:02x}")
    }
}

/// A text that is no [`Mac`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMac;

impl fmt::Display for NoMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no address of a network card: write six bytes, such as 52:54:00:67:6e:01")
    }
}

impl core::error::Error for NoMac {}

impl FromStr for Mac {
    type Err = NoMac;

    fn from_str(text: &str) -> Result<Self, NoMac> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit()));
            *byte = u8::from_str_radix(part.ok_or(NoMac)?, 16).map_err(|_| NoMac)?;
        }
        if parts.next().is_none() { Ok(Self(bytes)) } else { Err(NoMac) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_address_is_written_as_it_is_read() {
        let mac = Mac([0x52, 0x54, 0, 0x67, 0x6e, 1]);
        assert_eq!(mac.to_string(), "52:54:00:67:6e:01");
        assert_eq!("52:54:00:67:6E:01".parse(), Ok(mac));
        for other in ["", "52:54:00:67:6e", "52:54:00:67:6e:01:02", "52:54:00:67:6e:1", "52:54:00:67:6e:+1", "g"] {
            assert_eq!(other.parse::<Mac>(), Err(NoMac), "{other}");
        }
    }

    #[test]
    fn groups_and_nothing_are_no_cards() {
        for (text, is_card) in [("02:00:00:00:00:00", true), ("01:00:5e:00:00:01", false), ("ff:ff:ff:ff:ff:ff", false)]
        {
            assert_eq!(text.parse::<Mac>().map(Mac::is_card), Ok(is_card), "{text}");
        }
        assert!(!Mac([0; 6]).is_card());
    }
}
