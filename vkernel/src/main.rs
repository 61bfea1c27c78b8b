//! The vkernel's binary: the library has all of it.
#![no_std]
#![no_main]

use vkernel as _;
