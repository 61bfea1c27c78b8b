//! The kinds of devices that guests' boards have.

use super::offer::Kind;
use super::rtc;
use super::virtio::{balloon, block, console, key, net, rng, share};

/// All kinds, in the order in which a VM has their devices. A new kind is a file and a line here.
pub const KINDS: [Kind; 8] =
    [rtc::make, balloon::make, block::make, net::make, share::make, rng::make, console::make, key::make];
