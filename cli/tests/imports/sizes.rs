//! The sizes of a file's types: the methods of their `impl` blocks, and the fields of structs. Tests inside the file do
//! not count.

use std::collections::BTreeMap;
use syn::{Fields, ImplItem, Item, Type};

/// The sizes of a file's types.
#[derive(Default, PartialEq, Debug)]
pub struct Sizes {
    /// For each type, the methods of each of its `impl` blocks.
    pub methods: BTreeMap<String, Vec<usize>>,
    /// The fields of each struct.
    pub fields: BTreeMap<String, usize>,
}

impl Sizes {
    /// The sizes of what is in a file with that text.
    ///
    /// # Errors
    /// If it cannot be parsed.
    pub fn of(text: &str) -> Result<Self, String> {
        let mut sizes = Self::default();
        sizes.add(syn::parse_file(text).map_err(|error| error.to_string())?.items);
        Ok(sizes)
    }

    fn add(&mut self, items: Vec<Item>) {
        for item in items {
            match item {
                Item::Mod(module) if !super::graph::is_test(&module.attrs) => {
                    self.add(module.content.map_or_else(Vec::new, |(_, items)| items));
                }
                Item::Impl(block) => {
                    let methods = block.items.iter().filter(|item| matches!(item, ImplItem::Fn(_))).count();
                    self.methods.entry(name(&block.self_ty)).or_default().push(methods);
                }
                Item::Struct(item) => {
                    let fields = match &item.fields {
                        Fields::Named(fields) => fields.named.len(),
                        Fields::Unnamed(fields) => fields.unnamed.len(),
                        Fields::Unit => 0,
                    };
                    self.fields.insert(item.ident.to_string(), fields);
                }
                _ => {}
            }
        }
    }
}

fn name(this: &Type) -> String {
    match this {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default(),
        Type::Reference(reference) => name(&reference.elem),
        _ => String::new(),
    }
}
