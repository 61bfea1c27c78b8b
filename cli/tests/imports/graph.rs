//! Which file of a crate uses items of which other, and where that goes in a circle.
//!
//! A file is one node, with its inline modules. It uses another if it names an item there, in a `use` or in the midst of an
//! expression; re-exports are followed to where the item is. A file that only declares its children and re-exports what
//! they have is a sign at the door, and no node of a circle. Methods are not named by a path, so they do not count, nor do
//! tests inside of a file, which come after all the rest.
//!
//! Modules that the root file declares are the crate's folders, a single file among them. The root file may state their order,
//! as a numbered list in its doc comment, from the bottom to the top. Each line begins with a module's name:
//!
//! ```text
//! //! 1. [`words`]: what the others say
//! //! 2. `machine`: ...
//! ```

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use syn::{Attribute, Expr, ExprLit, Item, Lit, UseTree};

/// The files of one crate, and what they use of each other.
pub struct Imports {
    files: Vec<String>,
    uses: DiGraphMap<usize, ()>,
    /// The uses of files, with those by which a re-export only shows another file.
    shows: DiGraphMap<usize, ()>,
    /// The folders in their stated order, and each file's folder, none for the root file.
    order: Vec<String>,
    folders: Vec<Option<String>>,
}

impl Imports {
    /// Those of the crate with that root file; `read` gives the text of a file that exists.
    ///
    /// # Errors
    /// Which file could not be found or parsed.
    pub fn of(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Self, String> {
        let mut reader = Reader { read, krate: Crate::default() };
        reader.file(root, root.parent().unwrap_or(Path::new("")), None)?;
        let krate = reader.krate;
        let (mut uses, mut shows) = (DiGraphMap::new(), DiGraphMap::new());
        for (module, path, is_shown) in &krate.paths {
            let file = krate.modules[*module].file;
            for target in krate.resolve(*module, path).into_iter().filter(|target| *target != file) {
                shows.add_edge(file, target, ());
                if !is_shown {
                    uses.add_edge(file, target, ());
                }
            }
        }
        let mut folders = vec![None; krate.files.len()];
        for (name, folder) in &krate.modules[0].children {
            for (module, inner) in krate.modules.iter().enumerate().filter(|(_, inner)| inner.file != 0) {
                if krate.is_in(module, *folder) {
                    folders[inner.file] = Some(name.clone());
                }
            }
        }
        Ok(Self { files: krate.files, uses, shows, order: krate.order, folders })
    }

    /// The stated order of the folders, empty if the root file states none.
    pub fn order(&self) -> &[String] {
        &self.order
    }

    /// Each use of a folder by one below it, in words, and each folder that the stated order omits or makes up.
    /// The root file is above all folders.
    pub fn upward(&self) -> Vec<String> {
        let known: BTreeSet<&String> = self.folders.iter().flatten().collect();
        let stated: BTreeSet<&String> = self.order.iter().collect();
        let mut found: Vec<_> = known.difference(&stated).map(|name| format!("`{name}` has no place")).collect();
        found.extend(stated.difference(&known).map(|name| format!("`{name}` is not a module of the root file")));
        if stated.len() < self.order.len() {
            found.push("a module has two places".into());
        }
        let place = |file: usize| {
            let folder = self.folders[file].as_ref();
            folder.map_or(usize::MAX, |name| self.order.iter().position(|known| known == name).unwrap_or(0))
        };
        let mut upward: Vec<_> =
            self.shows.all_edges().filter(|(file, used, ())| place(*file) < place(*used)).collect();
        upward.sort_unstable_by_key(|(file, used, ())| (&self.files[*file], &self.files[*used]));
        found.extend(upward.iter().map(|(file, used, ())| {
            let above = self.folders[*used].as_deref().unwrap_or("the root file");
            format!("{} uses {}, and {above} is above it", self.files[*file], self.files[*used])
        }));
        found
    }

    /// The circles, each as the files in it.
    pub fn circles(&self) -> Vec<Vec<&str>> {
        let mut circles: Vec<Vec<&str>> = tarjan_scc(&self.uses)
            .into_iter()
            .filter(|files| files.len() > 1)
            .map(|files| files.into_iter().map(|file| self.files[file].as_str()).collect())
            .collect();
        circles.iter_mut().for_each(|files| files.sort_unstable());
        circles.sort_unstable();
        circles
    }

    /// The files that `file` uses, within `among`.
    pub fn used_by(&self, file: &str, among: &[&str]) -> Vec<&str> {
        let at = self.files.iter().position(|known| known == file).expect("a file of the crate");
        let used = self.uses.neighbors(at).map(|file| self.files[file].as_str());
        used.filter(|used| among.contains(used)).collect()
    }
}

type Segments = Vec<String>;

#[derive(Default)]
struct Module {
    parent: Option<usize>,
    file: usize,
    children: HashMap<String, usize>,
    /// Items that are defined here.
    own: Vec<String>,
    /// The paths of the names that are imported here.
    imported: HashMap<String, Segments>,
    /// Modules of which all is imported here.
    globs: Vec<Segments>,
}

#[derive(Default)]
struct Crate {
    files: Vec<String>,
    modules: Vec<Module>,
    /// The paths that are named, the module of each, and true for one that is only shown.
    paths: Vec<(usize, Segments, bool)>,
    /// The order that the root file states.
    order: Vec<String>,
    /// The files of macros that are named by the crate's root (`#[macro_export]`).
    exported: HashMap<String, usize>,
}

impl Crate {
    /// Returns whether `module` is `folder` or inside of it.
    fn is_in(&self, module: usize, folder: usize) -> bool {
        module == folder || self.modules[module].parent.is_some_and(|parent| self.is_in(parent, folder))
    }

    /// The file that holds the item that `path` means in `module`; none if it means no item of this crate. A module alone is
    /// not yet a use of what is in it; `*` stands for all of that.
    fn resolve(&self, module: usize, path: &[String]) -> Vec<usize> {
        let (path, is_glob) = match path.split_last() {
            Some((last, path)) if last == "*" => (path, true),
            _ => (path, false),
        };
        match self.resolve_within(module, path, 16) {
            Some(Found::Item(file)) => vec![file],
            Some(Found::Module(from)) if is_glob => {
                let Module { file, own, imported, .. } = &self.modules[from];
                let here = (!own.is_empty()).then_some(*file);
                here.into_iter().chain(imported.values().flat_map(|path| self.resolve(from, path))).collect()
            }
            Some(Found::Module(_)) | None => vec![],
        }
    }

    /// Like `resolve`; `depth` bounds the re-exports that are followed.
    fn resolve_within(&self, module: usize, path: &[String], depth: usize) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        let depth = depth.checked_sub(1)?;
        let start = match first.as_str() {
            "crate" => Found::Module(0),
            "self" => Found::Module(module),
            "super" => Found::Module(self.modules[module].parent?),
            name => self.named(module, name, depth)?,
        };
        rest.iter().try_fold(start, |found, segment| match found {
            Found::Item(_) => Some(found),
            Found::Module(module) if segment == "super" => self.modules[module].parent.map(Found::Module),
            Found::Module(module) => self.named(module, segment, depth).or_else(|| {
                // What nothing else explains, a macro has made there.
                let Module { file, imported, .. } = &self.modules[module];
                (!imported.contains_key(segment)).then_some(Found::Item(*file))
            }),
        })
    }

    /// The item that `name` means in `module`.
    fn named(&self, module: usize, name: &str, depth: usize) -> Option<Found> {
        let here = &self.modules[module];
        if let Some(child) = here.children.get(name) {
            return Some(Found::Module(*child));
        }
        if here.own.iter().any(|own| own == name) {
            return Some(Found::Item(here.file));
        }
        if let Some(file) = self.exported.get(name).filter(|_| module == 0) {
            return Some(Found::Item(*file));
        }
        if let Some(path) = here.imported.get(name).filter(|path| *path != &[name]) {
            return self.resolve_within(module, path, depth);
        }
        here.globs.iter().find_map(|glob| {
            let Found::Module(from) = self.resolve_within(module, glob, depth)? else { return None };
            if from == module { None } else { self.named(from, name, depth.checked_sub(1)?) }
        })
    }
}

#[derive(Clone, Copy)]
enum Found {
    Module(usize),
    /// In that file.
    Item(usize),
}

struct Reader<'a> {
    read: &'a dyn Fn(&Path) -> Option<String>,
    krate: Crate,
}

impl Reader<'_> {
    /// Reads a file, whose children are in the folder `children`, and those.
    fn file(&mut self, path: &Path, children: &Path, parent: Option<usize>) -> Result<usize, String> {
        let text = (self.read)(path).ok_or_else(|| format!("there is no {}", path.display()))?;
        let parsed = syn::parse_file(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let file = self.krate.files.len();
        if file == 0 {
            self.krate.order = stated_order(&parsed.attrs);
        }
        self.krate.files.push(path.display().to_string());
        let is_sign = parsed.items.iter().all(|item| match item {
            Item::Mod(module) => module.content.is_none() || is_test(&module.attrs),
            Item::Use(_) | Item::ExternCrate(_) => true,
            _ => false,
        });
        self.module((file, is_sign), children, parent, parsed.items)
    }

    fn module(
        &mut self,
        (file, is_sign): (usize, bool),
        children: &Path,
        parent: Option<usize>,
        items: Vec<Item>,
    ) -> Result<usize, String> {
        let this = self.krate.modules.len();
        self.krate.modules.push(Module { parent, file, ..Module::default() });
        for item in items {
            if is_test(attributes(&item)) {
                continue;
            }
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let below = children.join(&name);
                    let child = match module.content {
                        Some((_, items)) => self.module((file, is_sign), &below, Some(this), items)?,
                        None => {
                            let (beside, within) = (children.join(format!("{name}.rs")), below.join("mod.rs"));
                            let path = if (self.read)(&beside).is_some() { beside } else { within };
                            self.file(&path, &below, Some(this))?
                        }
                    };
                    self.krate.modules[this].children.insert(name, child);
                }
                Item::Use(item) => {
                    let mut found = Vec::new();
                    flatten(&item.tree, &mut Vec::new(), &mut found);
                    for (name, path) in found {
                        let mut named = path.clone();
                        let module = &mut self.krate.modules[this];
                        match name {
                            Some(name) => drop(module.imported.insert(name, path)),
                            None => {
                                module.globs.push(path);
                                named.push("*".into());
                            }
                        }
                        self.krate.paths.push((this, named, is_sign));
                    }
                }
                item => {
                    if let Item::Macro(item) = &item
                        && item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"))
                    {
                        self.krate.exported.extend(item.ident.as_ref().map(|name| (name.to_string(), file)));
                    }
                    self.krate.modules[this].own.extend(name(&item));
                    let mut paths = Vec::new();
                    named_in(item.to_token_stream(), &mut paths);
                    self.krate.paths.extend(paths.into_iter().map(|path| (this, path, false)));
                }
            }
        }
        Ok(this)
    }
}

/// Every name that a `use` brings, with what it stands for; no name for all of a module's.
fn flatten(tree: &UseTree, before: &mut Segments, into: &mut Vec<(Option<String>, Segments)>) {
    let full = |last: String| before.iter().cloned().chain([last]).collect::<Segments>();
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, into);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => into.push((before.last().cloned(), before.clone())),
        UseTree::Name(name) => into.push((Some(name.ident.to_string()), full(name.ident.to_string()))),
        UseTree::Rename(name) if name.ident == "self" => into.push((Some(name.rename.to_string()), before.clone())),
        UseTree::Rename(name) => into.push((Some(name.rename.to_string()), full(name.ident.to_string()))),
        UseTree::Glob(_) => into.push((None, before.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, into)),
    }
}

/// Every path of two names or more in these tokens, those in macros too.
fn named_in(tokens: TokenStream, into: &mut Vec<Segments>) {
    let mut path = Segments::new();
    let mut colons = 0;
    let mut finish = |path: &mut Segments| {
        let path = std::mem::take(path);
        if path.len() > 1 {
            into.push(path);
        }
    };
    let mut groups = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                if colons != 2 {
                    finish(&mut path);
                }
                path.push(ident.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Group(group) => {
                finish(&mut path);
                colons = 0;
                groups.push(group.stream());
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {
                finish(&mut path);
                colons = 0;
            }
        }
    }
    finish(&mut path);
    groups.into_iter().for_each(|tokens| named_in(tokens, into));
}

/// The names that begin the lines of a numbered list in a file's doc comment.
fn stated_order(attributes: &[Attribute]) -> Vec<String> {
    let docs = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let lines = docs.filter_map(|attribute| match &attribute.meta.require_name_value().ok()?.value {
        Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => Some(line.value()),
        _ => None,
    });
    let name = |line: String| {
        let (number, rest) = line.trim().split_once(". ")?;
        number.parse::<usize>().ok()?;
        let (name, _) = rest.trim_start_matches('[').strip_prefix('`')?.split_once('`')?;
        Some(name.trim_start_matches("mod@").to_owned())
    };
    lines.filter_map(name).collect()
}

/// Returns whether these attributes restrict the item to tests.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.meta.to_token_stream().to_string().replace(' ', "") == "cfg(test)"
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        _ => &[],
    }
}

/// The name by which others know the item.
fn name(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}
