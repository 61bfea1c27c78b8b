//! The formats of virtio that drivers and devices share, for disks, networks, consoles and all devices: the same where
//! Gnomon is the device, and where it is the driver of one of the host's.

/// The device takes chains that are in a table of their own (chapter 6).
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Each side says from where on it is to be notified.
pub const EVENT_IDX: u64 = 1 << 29;
/// The device is no legacy one.
pub const VERSION_1: u64 = 1 << 32;

/// Disks (chapter 5.2).
pub mod block {
    /// The configuration says how many buffers a request may have.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk cannot be written.
    pub const READ_ONLY: u64 = 1 << 5;
    /// The configuration says how large a block is.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// The device knows [`T_FLUSH`].
    pub const FLUSH: u64 = 1 << 9;
    /// The device has several queues, and the configuration says how many.
    pub const MQ: u64 = 1 << 12;
    /// The device knows [`T_DISCARD`].
    pub const DISCARD: u64 = 1 << 13;
    /// The device knows [`T_WRITE_ZEROES`].
    pub const WRITE_ZEROES: u64 = 1 << 14;

    /// Types of requests (`VIRTIO_BLK_T_*`): reads.
    pub const T_IN: u32 = 0;
    /// Writes.
    pub const T_OUT: u32 = 1;
    /// Makes written data durable.
    pub const T_FLUSH: u32 = 4;
    /// Returns the disk's name.
    pub const T_GET_ID: u32 = 8;
    /// Drops the content of sectors: they may read as anything afterwards.
    pub const T_DISCARD: u32 = 11;
    /// Makes sectors read as zero.
    pub const T_WRITE_ZEROES: u32 = 13;

    /// The values of the status (`VIRTIO_BLK_S_*`): the request is done.
    pub const S_OK: u8 = 0;
    /// The request has failed.
    pub const S_IOERR: u8 = 1;
    /// There is no such request.
    pub const S_UNSUPP: u8 = 2;

    /// Bytes of a request's header: type, a reserved word, sector.
    pub const HEADER: usize = 16;
    /// Bytes of a segment, which says what is to be discarded or zeroed: a sector, how many (4 bytes), flags (4 bytes).
    pub const SEGMENT: usize = 16;
    /// The flag of a segment to be zeroed by which the device may drop the content.
    pub const SEGMENT_UNMAP: u32 = 1;
    /// Bytes of the name that a disk has.
    pub const NAME: usize = 20;

    /// The offset in the configuration of the number of queues (2 bytes).
    pub const NUM_QUEUES: usize = 34;
    /// The offset of the number of sectors that may be discarded at a time. The words behind it say in how many
    /// segments, and at multiples of how many sectors it is best done.
    pub const MAX_DISCARD_SECTORS: usize = 36;
    /// The offset of the number of sectors that may be zeroed at a time. The word behind it says in how many segments.
    pub const MAX_WRITE_ZEROES_SECTORS: usize = 48;
    /// The byte that says whether [`SEGMENT_UNMAP`] may mean something.
    pub const WRITE_ZEROES_MAY_UNMAP: usize = 56;
}

/// Folders of the host by the protocol 9P (chapter 5.9): the queue has messages of it, and the device knows of nothing else.
pub mod share {
    /// The configuration says the tag by which the folder is mounted: its length (2 bytes), then its bytes.
    pub const MOUNT_TAG: u64 = 1 << 0;
}

/// Networks (chapter 5.1).
pub mod net {
    /// The configuration says which address the card has.
    pub const MAC: u64 = 1 << 5;
    /// A frame may be in several buffers that the driver has offered; and its header says in how many.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The configuration says whether there is a link.
    pub const STATUS: u64 = 1 << 16;

    /// There is one (`VIRTIO_NET_S_LINK_UP`).
    pub const LINK_UP: u16 = 1;

    /// The queue of frames that come.
    pub const RECEIVE: usize = 0;
    /// The queue of frames that go.
    pub const TRANSMIT: usize = 1;
}

/// Consoles (chapter 5.3), and ports.
pub mod console {
    /// There are several ports, and two queues by which they are spoken of; the configuration says how many there may be.
    pub const MULTIPORT: u64 = 1 << 1;

    /// The queue of what is typed.
    pub const RECEIVE: usize = 0;
    /// The queue of output.
    pub const TRANSMIT: usize = 1;
    /// With several ports: the queue of the device's messages to the driver.
    pub const CONTROL_RECEIVE: usize = 2;
    /// With several ports: the queue of the driver's messages. Behind it each port has two queues, like the first port.
    pub const CONTROL_TRANSMIT: usize = 3;

    /// The offset in the configuration of the number of possible ports (4 bytes).
    pub const MAX_NR_PORTS: usize = 4;

    /// Kinds of messages (`VIRTIO_CONSOLE_*`).
    pub mod event {
        /// The driver is ready to hear of ports; or cannot be.
        pub const DEVICE_READY: u16 = 0;
        /// There is a port.
        pub const PORT_ADD: u16 = 1;
        /// The driver can use a port; or cannot.
        pub const PORT_READY: u16 = 3;
        /// The port is for a console.
        pub const CONSOLE_PORT: u16 = 4;
        /// The other side has opened it, or closed it.
        pub const PORT_OPEN: u16 = 6;
        /// The port has a name, which is behind the message.
        pub const PORT_NAME: u16 = 7;
    }
}
