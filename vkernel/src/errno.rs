//! Errors of system calls.

use linux_raw_sys::errno;

/// The number of an error, as programs get it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub u16);

/// The result of a system call, or of a part of one.
pub type Result<T> = core::result::Result<T, Errno>;

macro_rules! errors {
    ($($name:ident $linux:ident)*) => {
        #[allow(missing_docs, reason = "errno(3) has them")]
        impl Errno {
            $(pub const $name: Self = Self(errno::$linux as u16);)*
        }
    };
}

errors! {
    PERM EPERM NOENT ENOENT SRCH ESRCH INTR EINTR IO EIO NXIO ENXIO TOOBIG E2BIG NOEXEC ENOEXEC BADF EBADF CHILD ECHILD AGAIN EAGAIN
    NOMEM ENOMEM ACCES EACCES FAULT EFAULT BUSY EBUSY EXIST EEXIST XDEV EXDEV NODEV ENODEV NOTDIR ENOTDIR ISDIR EISDIR INVAL EINVAL
    NFILE ENFILE MFILE EMFILE NOTTY ENOTTY TXTBSY ETXTBSY FBIG EFBIG NOSPC ENOSPC SPIPE ESPIPE ROFS EROFS MLINK EMLINK PIPE EPIPE
    DOM EDOM RANGE ERANGE DEADLK EDEADLK NAMETOOLONG ENAMETOOLONG NOLCK ENOLCK NOSYS ENOSYS NOTEMPTY ENOTEMPTY LOOP ELOOP
    NODATA ENODATA OVERFLOW EOVERFLOW OPNOTSUPP EOPNOTSUPP TIMEDOUT ETIMEDOUT NOTSOCK ENOTSOCK AFNOSUPPORT EAFNOSUPPORT
    NOTCONN ENOTCONN CANCELED ECANCELED DESTADDRREQ EDESTADDRREQ MSGSIZE EMSGSIZE PROTOTYPE EPROTOTYPE NOPROTOOPT ENOPROTOOPT
    PROTONOSUPPORT EPROTONOSUPPORT SOCKTNOSUPPORT ESOCKTNOSUPPORT ADDRINUSE EADDRINUSE ADDRNOTAVAIL EADDRNOTAVAIL NETUNREACH ENETUNREACH
    CONNRESET ECONNRESET ALREADY EALREADY INPROGRESS EINPROGRESS ISCONN EISCONN TOOMANYREFS ETOOMANYREFS CONNREFUSED ECONNREFUSED NOBUFS ENOBUFS IDRM EIDRM NOMSG ENOMSG
}

impl Errno {
    /// A call that a signal has interrupted, and that begins again if the signal's handler has `SA_RESTART`, or if none runs. No
    /// program gets this number.
    pub const RESTART: Self = Self(512);
    /// A call that needs an answer of the host first ([`crate::share`]). No program gets this number.
    pub const HOST: Self = Self(520);
    /// A call that is interrupted by a signal and begins again only if no handler runs.
    pub const RESTART_UNHANDLED: Self = Self(514);

    /// Returns what a program gets in a0.
    #[must_use]
    pub const fn to_register(self) -> u64 {
        (-(self.0 as i64)).cast_unsigned()
    }
}
