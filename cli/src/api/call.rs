//! The form of a method: its parameters, notifications, result, and function.

use super::failure::ApiError;
use super::wire::Id;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::RefCell;

/// A method. Its fields are the parameters.
pub trait Method: DeserializeOwned + JsonSchema + Send {
    /// The name.
    const NAME: &'static str;
    /// Set if a request may take as long as a VM lives.
    const IS_LONG: bool = false;
    /// The result.
    type Reply: Serialize + JsonSchema;
    /// The content of notifications while the request goes on; [`Never`] if there are none.
    type Notice: Serialize + JsonSchema;

    /// Carries out the request. Notifications go to `caller`. A request that may take long ends early if the caller does not wait any more,
    /// where its method says so.
    ///
    /// # Errors
    /// Those of the command of that name.
    fn carry_out(self, caller: &dyn Caller<Self::Notice>) -> miette::Result<Self::Reply>;

    /// Reads the parameters.
    ///
    /// # Errors
    /// [`ApiError::BadParams`].
    fn read(params: serde_json::Map<String, serde_json::Value>) -> Result<Self, ApiError> {
        serde_json::from_value(params.into())
            .map_err(|why| ApiError::BadParams { method: Self::NAME, why: why.to_string() })
    }
}

/// The origin of a request: a client of the API, or a command.
pub trait Caller<N> {
    /// Passes on a notification. Blocks while the caller does not read. Returns false if the caller is gone.
    fn notify(&self, notice: N) -> bool;

    /// Passes on a notification of a request that must not wait for its caller, such as one that keeps a VM paused. The notification is
    /// lost if the caller does not read at once.
    fn hint(&self, notice: N) {
        let _ = self.notify(notice);
    }

    /// Cancels another request of the same caller. Returns false if none with this `id` is pending.
    fn cancel(&self, _request: &Id) -> bool {
        false
    }

    /// Returns whether the caller does not wait for the result any more.
    fn is_cancelled(&self) -> bool;
}

/// The content of notifications of methods that have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub enum Never {}

/// A command as the caller, with a function for notifications.
pub struct Command<F>(RefCell<F>);

impl<F> Command<F> {
    /// A caller that passes notifications to a function. The function returns false if no more are wanted.
    pub const fn new(notify: F) -> Self {
        Self(RefCell::new(notify))
    }
}

impl<N, F: FnMut(N) -> bool> Caller<N> for Command<F> {
    fn notify(&self, notice: N) -> bool {
        (self.0.borrow_mut())(notice)
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Carries out a request without notifications, for a command.
///
/// # Errors
/// Those of the method.
pub fn call<M: Method<Notice = Never>>(method: M) -> miette::Result<M::Reply> {
    method.carry_out(&Command::new(|never: Never| match never {}))
}
