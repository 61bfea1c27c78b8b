//! The table of all methods: reads and carries out requests by name, and describes itself as a JSON schema.

use super::call::{Caller, Method, Never};
use super::failure::ApiError;
use super::verbs::{
    CheckMigration, Create, Destroy, Get, List, Logs, Migrate, Pause, Ps, Reboot, Remove, Reset, Resume, Run, Set,
    Shutdown, Snapshot, Start, Stats, Subscribe, Wait,
};
use super::wire::{Greeting, Id, Line, Request, VERSION};
use crate::host::written::did_you_mean;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::any::TypeId;

/// Cancels a request of this client that is pending. The reply to that one comes as well, mostly with the error `cancelled`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// The `id` of the other request.
    pub request: Id,
}

/// A request that was cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Cancelled {}

impl Method for Cancel {
    const NAME: &'static str = "cancel";
    type Reply = Cancelled;
    type Notice = Never;

    fn carry_out(self, caller: &dyn Caller<Never>) -> miette::Result<Cancelled> {
        if caller.cancel(&self.request) { Ok(Cancelled {}) } else { Err(ApiError::NotPending.into()) }
    }
}

/// The client of the API as the caller of any method.
pub trait AnyCaller: Caller<Value> {}

impl<C: Caller<Value>> AnyCaller for C {}

/// Turns notifications into JSON.
struct Json<'a>(&'a dyn AnyCaller);

impl<N: Serialize> Caller<N> for Json<'_> {
    fn notify(&self, notice: N) -> bool {
        self.0.notify(serde_json::to_value(notice).unwrap_or_default())
    }

    fn hint(&self, notice: N) {
        self.0.hint(serde_json::to_value(notice).unwrap_or_default());
    }

    fn cancel(&self, request: &Id) -> bool {
        self.0.cancel(request)
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

fn carry_out<M: Method>(method: M, caller: &dyn AnyCaller) -> miette::Result<Value> {
    let reply = method.carry_out(&Json(caller))?;
    serde_json::to_value(reply).map_err(|why| miette::miette!("the result is not JSON: {why}"))
}

/// The description of a method.
fn describe<M: Method>(schemas: &mut SchemaGenerator) -> (String, Value)
where
    M::Notice: 'static,
{
    let params = schemas.subschema_for::<M>();
    let result = schemas.subschema_for::<M::Reply>();
    let has_notices = TypeId::of::<M::Notice>() != TypeId::of::<Never>();
    let notification = has_notices.then(|| schemas.subschema_for::<M::Notice>());
    (M::NAME.into(), json!({ "params": params, "result": result, "notification": notification, "long": M::IS_LONG }))
}

/// Defines the table.
macro_rules! methods {
    ($($name:ident),* $(,)?) => {
        /// The names of all methods.
        pub const NAMES: &[&str] = &[$($name::NAME),*];

        /// A request with its parameters.
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "each is documented as a type")]
        pub enum Call { $($name($name)),* }

        impl Call {
            /// Reads a request.
            ///
            /// # Errors
            /// [`ApiError::UnknownMethod`] or [`ApiError::BadParams`].
            pub fn read(request: Request) -> Result<Self, ApiError> {
                match request.method.as_str() {
                    $($name::NAME => $name::read(request.params).map(Self::$name),)*
                    _ => {
                        // The name comes back to the client: a piece of it is enough.
                        let name: String = request.method.chars().take(40).collect();
                        let meant = did_you_mean(&name, NAMES);
                        Err(ApiError::UnknownMethod { name, meant, known: NAMES.to_vec() })
                    }
                }
            }

            /// Returns whether the request may take as long as a VM lives.
            #[must_use]
            pub const fn is_long(&self) -> bool {
                match self { $(Self::$name(_) => $name::IS_LONG),* }
            }

            /// Carries it out.
            ///
            /// # Errors
            /// Those of the method.
            pub fn carry_out(self, caller: &dyn AnyCaller) -> miette::Result<Value> {
                match self { $(Self::$name(method) => carry_out(method, caller)),* }
            }
        }

        fn describe_all(schemas: &mut SchemaGenerator) -> Map<String, Value> {
            [$(describe::<$name>(schemas)),*].into_iter().collect()
        }
    };
}

methods! {
    Ps, Stats, Get, Set, Pause, Resume, Shutdown, Reboot, Reset, Destroy, Snapshot, Migrate, CheckMigration, Run,
    Create, List, Start, Wait, Logs, Remove, Subscribe, Cancel,
}

/// Returns the JSON schema of the API. It describes a line of a client; `methods` has the parameters, notifications and result of each
/// method, `lines` the lines for a client.
#[must_use]
pub fn schema() -> Value {
    let mut schemas = SchemaSettings::draft2020_12().into_generator();
    let mut methods = describe_all(&mut schemas);
    let lines: Schema = schemas.subschema_for::<Line>();
    let greeting = schemas.subschema_for::<Greeting>();
    let id = schemas.subschema_for::<Id>();
    let definitions = schemas.take_definitions(true);
    for method in methods.values_mut() {
        let name = method["params"]["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let about = name.and_then(|name| definitions.get(name)?.get("description")).cloned();
        method["description"] = about.unwrap_or_default();
    }
    let request = |(name, method): (&String, &Value)| {
        let properties = json!({ "id": id, "method": { "const": name }, "params": method["params"] });
        json!({ "type": "object", "properties": properties, "required": ["id", "method"], "additionalProperties": false })
    };
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A request of the Gnomon API",
        "oneOf": methods.iter().map(request).collect::<Vec<_>>(),
        "version": VERSION,
        "greeting": greeting,
        "lines": lines,
        "methods": methods,
        "$defs": definitions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::parse;

    fn read(line: &str) -> Result<Call, ApiError> {
        Call::read(parse(line.as_bytes()).expect("a request"))
    }

    #[test]
    fn parameters_are_those_of_the_method() {
        let call = read(r#"{"id": 1, "method": "shutdown", "params": {"vm": "a"}}"#).expect("a call");
        assert_eq!(call, Call::Shutdown(Shutdown { run: None, vm: Some("a".into()), timeout: 30 }));
        for line in [
            r#"{"id": 1, "method": "pause", "params": {"name": "a"}}"#,
            r#"{"id": 1, "method": "pause", "params": {"vm": 1}}"#,
            r#"{"id": 1, "method": "shutdown", "params": {"timeout": 4294967296}}"#,
            r#"{"id": 1, "method": "shutdown", "params": {"timeout": -1}}"#,
            r#"{"id": 1, "method": "run", "params": {"args": "a b"}}"#,
            r#"{"id": 1, "method": "remove"}"#,
            r#"{"id": 1, "method": "set"}"#,
            r#"{"id": 1, "method": "cancel", "params": {"request": null}}"#,
        ] {
            assert!(matches!(read(line), Err(ApiError::BadParams { .. })), "{line}: {:?}", read(line));
        }
        let unknown = read(r#"{"id": 1, "method": "puase"}"#).expect_err("no method").to_string();
        assert!(unknown.contains("pause"), "{unknown}");
        assert!(matches!(read(r#"{"id": 1, "method": ""}"#), Err(ApiError::UnknownMethod { .. })));
    }

    #[test]
    fn the_schema_has_every_method_and_its_description() {
        let schema = schema();
        for name in NAMES {
            let method = &schema["methods"][name];
            for part in ["params", "result"] {
                let path = method[part]["$ref"].as_str().unwrap_or_else(|| panic!("{name}: no {part}"));
                let at = path.strip_prefix('#').expect("a place in this schema");
                assert!(schema.pointer(at).is_some(), "{name}: {path}");
            }
            assert!(method["description"].as_str().is_some_and(|about| !about.is_empty()), "{name}");
        }
        assert_eq!(schema["oneOf"].as_array().map(Vec::len), Some(NAMES.len()));
        assert_eq!(schema["methods"].as_object().map(Map::len), Some(NAMES.len()));
    }
}
