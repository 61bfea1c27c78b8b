//! A share of the host's, which answers when it is told to: each message with one of the next type and the same tag.

use hypervisor::backend::port::HostDevice;
use hypervisor::backend::shares::{Asked, Lost, NotBegun, Token, UNIT_BYTES, UNITS, Units};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The state of the share's server.
#[derive(Debug, Default)]
pub struct Server {
    /// The requests that were begun and are not answered.
    pub begun: Vec<(Token, Asked)>,
    done: Vec<(Token, Asked)>,
    tokens: u16,
}

impl Server {
    /// Answers all that was begun.
    pub fn answer(&mut self) {
        self.done.append(&mut self.begun);
    }
}

thread_local! {
    /// The shares of the machine that was made last, by number.
    static SHARES: RefCell<BTreeMap<u32, Arc<Mutex<Server>>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Returns the server of a share of the machine that was made last.
pub fn server(number: u32) -> Arc<Mutex<Server>> {
    SHARES.with_borrow(|all| all[&number].clone())
}

pub struct FakeShare {
    server: Arc<Mutex<Server>>,
    buffer: Vec<u8>,
}

impl FakeShare {
    pub fn new(number: u32) -> Self {
        let server = Arc::new(Mutex::new(Server::default()));
        SHARES.with_borrow_mut(|all| all.insert(number, server.clone()));
        Self { server, buffer: vec![0; UNITS * UNIT_BYTES] }
    }
}

impl HostDevice for FakeShare {
    type Asked = Asked;
    type Outcome = Result<usize, Lost>;

    fn buffer(&mut self, units: Units) -> &mut [u8] {
        &mut self.buffer[units.first * UNIT_BYTES..][..units.bytes()]
    }
    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun> {
        let mut server = self.server.lock().unwrap();
        server.tokens = server.tokens.wrapping_add(1);
        let token = Token(server.tokens);
        server.begun.push((token, *asked));
        Ok(token)
    }
    fn finished(&mut self) -> Option<(Token, Result<usize, Lost>)> {
        let (token, asked) = self.server.lock().unwrap().done.pop()?;
        let units = &mut self.buffer[asked.units.first * UNIT_BYTES..][..asked.units.bytes()];
        let message = &units[asked.message()];
        let (kind, tag) = (message[4], [message[5], message[6]]);
        units[asked.answer()][..7].copy_from_slice(&[7, 0, 0, 0, kind + 1, tag[0], tag[1]]);
        Some((token, Ok(7)))
    }
    fn acknowledge(&mut self) {}
}
