//! Drives an interactive console: waits for a text, types an answer.

use serde::Deserialize;
use std::collections::VecDeque;

/// One exchange.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// The expected output.
    pub wait: String,
    /// The typed answer.
    #[serde(rename = "type")]
    pub answer: String,
}

/// The exchanges that are still to come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dialog {
    to_come: VecDeque<Exchange>,
    /// Output since the last answer.
    seen: Vec<u8>,
}

impl Dialog {
    /// Starts at the first exchange.
    pub fn new(exchanges: &[Exchange]) -> Self {
        Self { to_come: exchanges.iter().cloned().collect(), seen: Vec::new() }
    }

    /// Takes in output; returns what is to be typed now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.seen.extend_from_slice(bytes);
        let mut answers = Vec::new();
        while let Some(exchange) = self.to_come.front() {
            let wanted = exchange.wait.as_bytes();
            let Some(at) = self.seen.windows(wanted.len().max(1)).position(|window| window == wanted) else { break };
            self.seen.drain(..at + wanted.len());
            answers.extend(self.to_come.pop_front().map(|exchange| exchange.answer));
        }
        answers
    }

    /// The text that the dialog waits for, if any.
    pub fn waits_for(&self) -> Option<&str> {
        self.to_come.front().map(|exchange| exchange.wait.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_its_turn() {
        let exchange = |wait: &str, answer: &str| Exchange { wait: wait.into(), answer: answer.into() };
        let mut dialog = Dialog::new(&[exchange("=> ", "a\r"), exchange("=> ", "b\r"), exchange("bye", "")]);
        assert_eq!(dialog.push(b"boot\r\n="), Vec::<String>::new());
        assert_eq!(dialog.push(b"> "), ["a\r"]);
        assert_eq!((dialog.push(b"a\r\nout\r\n").len(), dialog.waits_for()), (0, Some("=> ")));
        assert_eq!(dialog.push(b"=> ...bye"), ["b\r", ""]);
        assert_eq!(dialog.waits_for(), None);
    }
}
