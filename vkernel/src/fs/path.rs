//! Paths, and the places that they lead to.

use super::{Kind, MOST_NAME, MOST_PATH, Node};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::credentials::Credentials;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The most symbolic links that a path may lead through.
const MOST_LINKS: u32 = 40;

/// A node with the way by which it was found.
#[derive(Debug)]
pub struct Place {
    /// The directory that it is in; none for the root.
    pub parent: Option<Arc<Place>>,
    /// Its name there.
    pub name: String,
    /// The node.
    pub node: Arc<dyn Node>,
}

/// A file system with the number of the node that it is mounted on.
type Mount = ((u64, u64), Arc<dyn Node>);

/// All mounted file systems.
static MOUNTS: Mutex<Vec<Mount>> = Mutex::new(Vec::new());

/// Mounts a file system on a node.
pub fn mount(on: &Arc<dyn Node>, root: Arc<dyn Node>) {
    MOUNTS.lock().push((on.status().id, root));
}

/// Removes what was mounted last on a node: the root of the file system names it.
///
/// # Errors
/// `EINVAL` if nothing is mounted there.
pub fn unmount(root: &Arc<dyn Node>) -> Result<()> {
    let mut mounts = MOUNTS.lock();
    let at = mounts.iter().rposition(|(_, mounted)| Arc::ptr_eq(mounted, root)).ok_or(Errno::INVAL)?;
    mounts.remove(at);
    Ok(())
}

fn mounted(node: Arc<dyn Node>) -> Arc<dyn Node> {
    let mounts = MOUNTS.lock();
    if mounts.is_empty() || node.status().kind != Kind::Directory {
        return node;
    }
    let mut top = node;
    // One may be mounted on the root of another.
    while let Some((_, root)) =
        mounts.iter().rev().find(|(on, root)| *on == top.status().id && !Arc::ptr_eq(root, &top))
    {
        top = Arc::clone(root);
    }
    top
}

impl Place {
    /// The root of all.
    #[must_use]
    pub fn root(node: Arc<dyn Node>) -> Arc<Self> {
        Arc::new(Self { parent: None, name: String::new(), node })
    }

    /// Finds a name in the directory at this place.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`.
    pub fn child(self: &Arc<Self>, name: &str) -> Result<Arc<Self>> {
        self.child_ahead(name, &mut core::iter::empty())
    }

    /// Finds a name in the directory at this place, of a path that goes on with other names.
    fn child_ahead(self: &Arc<Self>, name: &str, rest: &mut dyn Iterator<Item = &str>) -> Result<Arc<Self>> {
        if name.len() > MOST_NAME {
            return Err(Errno::NAMETOOLONG);
        }
        let node = mounted(self.node.lookup_ahead(name, rest)?);
        Ok(Arc::new(Self { parent: Some(Arc::clone(self)), name: name.to_string(), node }))
    }

    /// Returns the path from a root.
    #[must_use]
    pub fn path(self: &Arc<Self>, root: &Arc<Self>) -> String {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(parent) = &at.parent {
            if Arc::ptr_eq(&at.node, &root.node) {
                break;
            }
            names.push(at.name.as_str());
            at = parent;
        }
        if names.is_empty() {
            return "/".into();
        }
        names.iter().rev().flat_map(|name| ["/", name]).collect()
    }

    fn is_link(&self) -> bool {
        self.node.status().kind == Kind::Link
    }
}

/// The directories of a process.
#[derive(Clone, Debug)]
pub struct Position {
    /// The current directory.
    pub current: Arc<Place>,
    /// The root directory.
    pub root: Arc<Place>,
    /// Permissions that new files do not get.
    pub mask: u32,
    /// The credentials by which paths are searched. Each call sets those of its process.
    pub user: Arc<Credentials>,
}

/// The last step of a path.
#[derive(Debug)]
pub enum Target {
    /// A place that exists.
    Present(Arc<Place>),
    /// A name that the directory does not have.
    Absent(Arc<Place>, String),
}

/// The treatment of a symbolic link at a path's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last {
    /// The link is followed.
    Follow,
    /// The link is the result.
    Keep,
}

impl Position {
    /// Finds what a path leads to, or the directory and the name that are missing there.
    ///
    /// # Errors
    /// As `path_resolution(7)`.
    pub fn find(&self, start: &Arc<Place>, path: &str, last: Last) -> Result<Target> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if path.len() >= MOST_PATH {
            return Err(Errno::NAMETOOLONG);
        }
        self.walk(Arc::clone(start), path, last, &mut 0)
    }

    fn walk(&self, start: Arc<Place>, path: &str, last: Last, links: &mut u32) -> Result<Target> {
        let mut at = if path.starts_with('/') { Arc::clone(&self.root) } else { start };
        let wants_directory = path.ends_with('/');
        let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
        while let Some(name) = names.next() {
            let is_last = names.peek().is_none();
            self.user.check_search(|| at.node.status())?;
            match name {
                "." => {
                    if at.node.status().kind != Kind::Directory {
                        return Err(Errno::NOTDIR);
                    }
                    continue;
                }
                ".." => {
                    if !Arc::ptr_eq(&at.node, &self.root.node)
                        && let Some(parent) = &at.parent
                    {
                        at = Arc::clone(parent);
                    }
                    continue;
                }
                _ => {}
            }
            let found = match at.child_ahead(name, &mut names.clone()) {
                Err(Errno::NOENT) if is_last => return Ok(Target::Absent(at, name.to_string())),
                result => result?,
            };
            if !found.is_link() || is_last && last == Last::Keep && !wants_directory {
                at = found;
                continue;
            }
            *links += 1;
            if *links > MOST_LINKS {
                return Err(Errno::LOOP);
            }
            if let Some(place) = found.node.destination() {
                at = place;
                continue;
            }
            match self.walk(at, &found.node.target()?, Last::Follow, links)? {
                Target::Present(place) => at = place,
                absent if is_last => return Ok(absent),
                Target::Absent(..) => return Err(Errno::NOENT),
            }
        }
        if wants_directory && at.node.status().kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        Ok(Target::Present(at))
    }

    /// Finds what a path leads to.
    ///
    /// # Errors
    /// As [`Position::find`]; `ENOENT`.
    pub fn present(&self, start: &Arc<Place>, path: &str, last: Last) -> Result<Arc<Place>> {
        match self.find(start, path, last)? {
            Target::Present(place) => Ok(place),
            Target::Absent(..) => Err(Errno::NOENT),
        }
    }

    /// Finds the directory of a new name.
    ///
    /// # Errors
    /// As [`Position::find`]; `EEXIST`.
    pub fn absent(&self, start: &Arc<Place>, path: &str) -> Result<(Arc<Place>, String)> {
        match self.find(start, path, Last::Keep)? {
            Target::Present(_) => Err(Errno::EXIST),
            Target::Absent(place, name) => Ok((place, name)),
        }
    }

    /// Finds the directory and the name of something that is to be removed or renamed.
    ///
    /// # Errors
    /// As [`Position::find`]; `EINVAL`, `ENOTEMPTY` and `EBUSY` for names that are none.
    pub fn name(&self, start: &Arc<Place>, path: &str) -> Result<(Arc<Place>, String)> {
        let path = path.trim_end_matches('/');
        match path.rsplit('/').next() {
            Some(".") => return Err(Errno::INVAL),
            Some("..") => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        match self.find(start, path, Last::Keep) {
            Err(Errno::NOENT) if path.is_empty() => Err(Errno::BUSY),
            Err(why) => Err(why),
            Ok(Target::Present(place)) => {
                let parent = place.parent.clone().ok_or(Errno::BUSY)?;
                Ok((parent, place.name.clone()))
            }
            Ok(Target::Absent(..)) => Err(Errno::NOENT),
        }
    }
}
