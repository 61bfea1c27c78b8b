//! The tunables of a run.

use crate::api::call::{Caller, Method, Never};
use crate::control::ControlError;
use crate::control::client::Client;
use crate::host::written::did_you_mean;
use abi::control::Request;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A tunable and its value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Tunable {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// The tunables of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Tunables {
    /// The run.
    pub run: String,
    /// All of them, or those that were asked for or set.
    pub tunables: Vec<Tunable>,
}

/// Returns the error for a name that no tunable has.
#[must_use]
pub fn no_tunable(name: &str, known: &[&str]) -> String {
    format!("there is no tunable `{name}`: {}choose one of {}", did_you_mean(name, known), known.join(" "))
}

fn refused(client: &Client, what: &str, name: &str, all: &[(String, String)]) -> ControlError {
    let known: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    ControlError::Refused { run: client.run().into(), what: what.into(), why: no_tunable(name, &known) }
}

fn reply(client: &Client, all: Vec<(String, String)>) -> Tunables {
    let tunables = all.into_iter().map(|(name, value)| Tunable { name, value }).collect();
    Tunables { run: client.run().into(), tunables }
}

/// Returns the tunables of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Get {
    /// The run; optional if there is only one.
    pub run: Option<String>,
    /// Only the tunable of this name.
    pub name: Option<String>,
}

impl Method for Get {
    const NAME: &'static str = "get";
    type Reply = Tunables;
    type Notice = Never;

    fn carry_out(self, _: &dyn Caller<Never>) -> miette::Result<Tunables> {
        let mut client = Client::of(self.run.as_deref())?;
        let mut all = client.tunables()?;
        if let Some(name) = &self.name {
            if !all.iter().any(|(known, _)| known == name) {
                Err(refused(&client, "get", name, &all))?;
            }
            all.retain(|(known, _)| known == name);
        }
        Ok(reply(&client, all))
    }
}

/// Sets tunables of a run, in order, up to the first that is refused. Nothing is set if a name is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// The run; optional if there is only one.
    pub run: Option<String>,
    /// Tunables and their values, each as `NAME=VALUE`.
    pub settings: Vec<String>,
}

impl Method for Set {
    const NAME: &'static str = "set";
    type Reply = Tunables;
    type Notice = Never;

    fn carry_out(self, _: &dyn Caller<Never>) -> miette::Result<Tunables> {
        let mut client = Client::of(self.run.as_deref())?;
        let all = client.tunables()?;
        let names = self.settings.iter().filter_map(|setting| setting.split_once('=')).map(|(name, _)| name.trim());
        let names: Vec<String> = names.map(String::from).collect();
        if let Some(wrong) = names.iter().find(|name| !all.iter().any(|(known, _)| known == *name)) {
            Err(refused(&client, "set", wrong, &all))?;
        }
        for setting in &self.settings {
            // A longer name belongs to no tunable, and does not fit into a request.
            let setting: String = setting.chars().take(60).collect();
            client.tell("set", &Request::Set(setting))?;
        }
        let mut all = client.tunables()?;
        all.retain(|(known, _)| names.contains(known));
        Ok(reply(&client, all))
    }
}
