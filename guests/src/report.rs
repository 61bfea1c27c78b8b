//! Named checks and the report that the test runner reads (`abi::report`).

use crate::{console, sbi};
use abi::report::{DONE, FAIL, PASS};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A text of at most `N` bytes, without a heap; what does not fit is cut off.
#[derive(Clone, Copy)]
pub struct Fixed<const N: usize> {
    bytes: [u8; N],
    length: u16,
}

/// A name, or why a check failed.
pub type Text = Fixed<120>;
/// A line on the console.
pub type Line = Fixed<320>;

impl<const N: usize> Fixed<N> {
    /// Formats.
    #[must_use]
    pub fn of(arguments: fmt::Arguments<'_>) -> Self {
        let mut text = Self { bytes: [0; N], length: 0 };
        // An error only says that the text was cut off.
        let _ = text.write_fmt(arguments);
        text
    }

    /// Appends a line end, if need be over the last byte.
    pub fn end_line(&mut self) {
        self.length = self.length.min(N as u16 - 1);
        self.bytes[usize::from(self.length)] = b'\n';
        self.length += 1;
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or("(text cut within a character)\n")
    }
}

impl<const N: usize> Write for Fixed<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            *self.bytes.get_mut(usize::from(self.length)).ok_or(fmt::Error)? = byte;
            self.length += 1;
        }
        Ok(())
    }
}

/// Something with its name, as in tables of checks.
pub type Named<T> = (&'static str, T);

/// The result of a check: nothing to say, or the reason of its failure.
pub type Check = Result<(), Text>;

static CHECKS: AtomicU32 = AtomicU32::new(0);
static FAILURES: AtomicU32 = AtomicU32::new(0);

/// Makes one check and reports it. The boot hart alone calls this.
pub fn run(name: &str, check: impl FnOnce() -> Check) {
    let outcome = check();
    CHECKS.fetch_add(1, Relaxed);
    match outcome {
        Ok(()) => console::line(format_args!("{PASS}{name}")),
        Err(why) => {
            FAILURES.fetch_add(1, Relaxed);
            console::line(format_args!("{FAIL}{name}: {}", why.as_str()));
        }
    }
}

/// Reports a failure outside a check.
pub fn failed(what: fmt::Arguments<'_>) {
    FAILURES.fetch_add(1, Relaxed);
    console::line(format_args!("{FAIL}{what}"));
}

/// Ends the report and turns the machine off; the reason "system failure" says that a check failed.
pub fn finish() -> ! {
    console::line(format_args!("{DONE}{}", CHECKS.load(Relaxed)));
    sbi::shutdown(FAILURES.load(Relaxed) != 0)
}
