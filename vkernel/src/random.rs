//! Random bytes: ChaCha20 with a key from the device tree (`rng-seed`), as far as that has one.

use crate::sync::Mutex;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

static SOURCE: Mutex<Option<ChaCha20Rng>> = Mutex::new(None);

/// Sets the key, from bytes of any number.
pub fn start(seed: &[u8]) {
    let mut key = [0; 32];
    seed.iter().enumerate().for_each(|(n, byte)| key[n % 32] ^= byte.rotate_left(n as u32 / 32));
    *SOURCE.lock() = Some(ChaCha20Rng::from_seed(key));
}

/// Fills a buffer with random bytes.
pub fn fill(to: &mut [u8]) {
    SOURCE.lock().get_or_insert_with(|| ChaCha20Rng::from_seed([0; 32])).fill_bytes(to);
}
