//! A file system in memory that crashes at a chosen operation, and loses what was not synced.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use wornpath_jobs::{Disk, StoredFile};

/// Pseudorandom numbers from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % most.max(1) as u64) as usize
    }
}

/// How much of the interrupted operation takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    Before,
    Torn,
    After,
}

/// What crashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crash {
    /// The process: its writes survive.
    Process,
    /// The machine: of unsynced writes, any part may survive.
    Machine,
}

#[derive(Clone, Debug, Default)]
struct Node {
    synced: Vec<u8>,
    bytes: Vec<u8>,
    is_locked: bool,
}

#[derive(Clone, Debug)]
enum NameChange {
    Made(PathBuf, usize),
    Moved(PathBuf, PathBuf),
    Gone(PathBuf),
}

#[derive(Debug, Default)]
struct World {
    nodes: Vec<Node>,
    names: BTreeMap<PathBuf, usize>,
    synced_names: BTreeMap<PathBuf, usize>,
    unsynced: Vec<NameChange>,
    operations: usize,
    dies_at: Option<(usize, Cut)>,
    is_dead: bool,
    /// The free bytes.
    room: Option<usize>,
    /// The number of syncs that fail from now on.
    failing_syncs: usize,
    /// Handles from before a crash belong to a former process.
    process: usize,
}

/// An open file.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultyDisk(Arc<Mutex<World>>);

struct Handle {
    world: FaultyDisk,
    node: usize,
    process: usize,
    has_lock: Mutex<bool>,
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, change: &NameChange) {
    match change {
        NameChange::Made(path, node) => {
            names.insert(path.clone(), *node);
        }
        NameChange::Moved(from, to) => {
            if let Some(node) = names.remove(from) {
                names.insert(to.clone(), node);
            }
        }
        NameChange::Gone(path) => {
            names.remove(path);
        }
    }
}

impl World {
    /// Counts an operation, and crashes if it is the chosen one. Returns how much of it takes
    /// effect.
    fn operate(&mut self) -> io::Result<Option<Cut>> {
        if self.is_dead {
            return Err(dead());
        }
        self.operations += 1;
        match self.dies_at {
            Some((at, cut)) if at == self.operations => {
                self.is_dead = true;
                Ok(Some(cut))
            }
            _ => Ok(None),
        }
    }

    fn used(&self) -> usize {
        self.names.values().map(|node| self.nodes[*node].bytes.len()).sum()
    }

    fn change(&mut self, change: NameChange) -> io::Result<()> {
        let cut = self.operate()?;
        if cut != Some(Cut::Before) {
            apply(&mut self.names, &change);
            self.unsynced.push(change);
        }
        if cut.is_some() { Err(dead()) } else { Ok(()) }
    }
}

impl FaultyDisk {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// The number of operations since the last start.
    pub(crate) fn operations(&self) -> usize {
        self.world().operations
    }

    pub(crate) fn crash_at(&self, operation: usize, cut: Cut) {
        self.world().dies_at = Some((operation, cut));
    }

    /// Injects no more crashes.
    pub(crate) fn live_on(&self) {
        self.world().dies_at = None;
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.world().is_dead
    }

    pub(crate) fn set_room(&self, room: Option<usize>) {
        self.world().room = room;
    }

    pub(crate) fn fail_syncs(&self, count: usize) {
        self.world().failing_syncs = count;
    }

    pub(crate) fn used(&self) -> usize {
        self.world().used()
    }

    /// The content of a file.
    pub(crate) fn content(&self, path: &Path) -> Option<Vec<u8>> {
        let world = self.world();
        world.names.get(path).map(|node| world.nodes[*node].bytes.clone())
    }

    /// Damages a file without any operation of the store.
    pub(crate) fn flip(&self, path: &Path, bit: usize) {
        let mut world = self.world();
        let node = world.names[path];
        world.nodes[node].bytes[bit / 8] ^= 1 << (bit % 8);
    }

    /// Restarts after a crash.
    pub(crate) fn reboot(&self, crash: Crash, dice: &mut Dice) {
        let mut world = self.world();
        if crash == Crash::Machine {
            let survive = dice.below(world.unsynced.len() + 1);
            let mut names = world.synced_names.clone();
            for change in &world.unsynced[..survive] {
                apply(&mut names, change);
            }
            world.names = names;
            for node in &mut world.nodes {
                node.bytes = survivor(node, dice);
            }
        }
        for node in &mut world.nodes {
            node.synced = node.bytes.clone();
            node.is_locked = false;
        }
        world.synced_names = world.names.clone();
        world.unsynced.clear();
        (world.operations, world.dies_at, world.is_dead) = (0, None, false);
        world.process += 1;
    }
}

/// Of unsynced bytes a prefix survives, in which some pages are zeros.
fn survivor(node: &Node, dice: &mut Dice) -> Vec<u8> {
    let same = node.synced.iter().zip(&node.bytes).take_while(|(one, other)| one == other).count();
    if node.bytes.len() < node.synced.len() && dice.below(2) == 0 {
        return node.synced.clone();
    }
    let mut bytes = node.bytes[..same + dice.below(node.bytes.len() - same + 1)].to_vec();
    if bytes.len() > same && dice.below(3) == 0 {
        let from = same + dice.below(bytes.len() - same);
        bytes[from..].fill(0);
    }
    bytes
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        let mut world = self.world();
        if world.is_dead {
            return Err(dead());
        }
        let node = match world.names.get(path) {
            Some(node) => *node,
            None => {
                let node = world.nodes.len();
                world.nodes.push(Node::default());
                world.change(NameChange::Made(path.to_owned(), node))?;
                node
            }
        };
        let process = world.process;
        drop(world);
        Ok(Box::new(Handle { world: self.clone(), node, process, has_lock: Mutex::new(false) }))
    }

    fn exists(&self, path: &Path) -> bool {
        self.world().names.contains_key(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let world = self.world();
        let inside = |path: &&PathBuf| path.parent() == Some(folder);
        Ok(world.names.keys().filter(inside).cloned().collect())
    }

    fn make_folder(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.world().change(NameChange::Moved(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if !self.exists(path) {
            return Ok(());
        }
        self.world().change(NameChange::Gone(path.to_owned()))
    }

    fn sync_folder(&self, _path: &Path) -> io::Result<()> {
        let mut world = self.world();
        let cut = world.operate()?;
        if cut != Some(Cut::Before) {
            world.synced_names = world.names.clone();
            world.unsynced.clear();
        }
        if cut.is_some() { Err(dead()) } else { Ok(()) }
    }
}

impl Handle {
    fn alive(&self) -> io::Result<MutexGuard<'_, World>> {
        let world = self.world.world();
        if world.is_dead || world.process != self.process { Err(dead()) } else { Ok(world) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut world = self.world.world();
        if *self.has_lock.lock().unwrap() && world.process == self.process {
            world.nodes[self.node].is_locked = false;
        }
    }
}

impl StoredFile for Handle {
    fn length(&self) -> io::Result<u64> {
        Ok(self.alive()?.nodes[self.node].bytes.len() as u64)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.alive()?;
        let cut = world.operate()?;
        let fits = world.room.map_or(bytes.len(), |room| room.saturating_sub(world.used()));
        let some = match cut {
            Some(Cut::Before) => 0,
            Some(Cut::Torn) => bytes.len() / 2,
            Some(Cut::After) | None => bytes.len().min(fits),
        };
        world.nodes[self.node].bytes.extend_from_slice(&bytes[..some]);
        match cut {
            Some(_) => Err(dead()),
            None if some < bytes.len() => Err(io::ErrorKind::StorageFull.into()),
            None => Ok(()),
        }
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let mut world = self.alive()?;
        let cut = world.operate()?;
        if cut != Some(Cut::Before) {
            world.nodes[self.node].bytes.truncate(length as usize);
        }
        if cut.is_some() { Err(dead()) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut world = self.alive()?;
        let cut = world.operate()?;
        if cut.is_none() && world.failing_syncs > 0 {
            world.failing_syncs -= 1;
            return Err(io::Error::other("the disk does not sync"));
        }
        if cut != Some(Cut::Before) {
            let node = &mut world.nodes[self.node];
            node.synced = node.bytes.clone();
        }
        if cut.is_some() { Err(dead()) } else { Ok(()) }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let world = self.alive()?;
        let bytes = &world.nodes[self.node].bytes;
        let from = bytes.len().min(offset as usize);
        let count = buffer.len().min(bytes.len() - from);
        buffer[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn lock(&self) -> io::Result<bool> {
        let mut world = self.alive()?;
        let is_free = !world.nodes[self.node].is_locked;
        if is_free {
            world.nodes[self.node].is_locked = true;
            *self.has_lock.lock().unwrap() = true;
        }
        Ok(is_free)
    }
}
