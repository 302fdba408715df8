//! Inode numbers that say what they stand for, so that nothing has to be kept per name seen.
//!
//! 64 bits, from the top: kind (6), view (7), stream (10), number (41). Steps and record ids that
//! need more than 41 bits, and links, are kept in a table, until the kernel forgets them or newer ones need the
//! place. The kernel is told to look such names up each time, so that it learns the new number of
//! one whose old number was given up.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use batchfs_batch::{Face, Item, Key};

use crate::node::{Inner, Node, Top};

const NUMBER_BITS: u32 = 41;
const STREAM_BITS: u32 = 10;
const VIEW_BITS: u32 = 7;
const KIND_AT: u32 = NUMBER_BITS + STREAM_BITS + VIEW_BITS;

const KIND_TOP: u64 = 0;
const KIND_INNER: u64 = 1;
/// Kinds of files: 2 + 8 * item + face, the face's place among all.
const KIND_FILE: u64 = 2;
const FACES: u64 = 8;
const KIND_KEPT: u64 = 63;

const _: () = assert!(Face::ALL.len() as u64 <= FACES && KIND_FILE + 4 * FACES <= KIND_KEPT);

/// Most nodes without a number of their own that are remembered at a time.
const MOST_KEPT: usize = 1 << 16;

fn pack(kind: u64, view: u16, stream: u16, number: u64) -> u64 {
    debug_assert!(number < 1 << NUMBER_BITS && u32::from(stream) < 1 << STREAM_BITS);
    kind << KIND_AT
        | u64::from(view) << (NUMBER_BITS + STREAM_BITS)
        | u64::from(stream) << NUMBER_BITS
        | number
}

/// Translates between nodes and inode numbers.
#[derive(Default)]
pub(crate) struct Inodes(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    next: u64,
    by_node: HashMap<Node, u64>,
    /// Oldest first: slots are numbered upwards.
    by_slot: BTreeMap<u64, (Node, u64)>,
}

/// Whether the inode number of `node` may be given up before the kernel forgets it.
pub(crate) fn is_kept(node: Node) -> bool {
    match node {
        Node::File(key) => key.number >> NUMBER_BITS != 0,
        Node::Link(_) => true,
        Node::Top(_) | Node::Inner(..) => false,
    }
}

/// The view that the node of this inode number is part of, known or forgotten.
pub(crate) fn view_of(ino: u64) -> u16 {
    (ino >> (NUMBER_BITS + STREAM_BITS) & ((1 << VIEW_BITS) - 1)) as u16
}

impl Inodes {
    /// The inode number of `node`. `looked_up` says that the kernel is told of it and will tell
    /// when it forgets it; without that, `None` for one that would have to be kept.
    pub(crate) fn number(&self, node: Node, looked_up: bool) -> Option<u64> {
        Some(match node {
            Node::Top(top) => pack(KIND_TOP, 0, 0, top as u64),
            Node::Inner(view, inner) => {
                let (which, stream) = match inner {
                    Inner::Indices => (0, 0),
                    Inner::Stream(s) => (1, s),
                    Inner::Schema(s) => (2, s),
                    Inner::Records(s) => (3, s),
                    Inner::Batches(s) => (4, s),
                    Inner::All => (5, 0),
                    Inner::AllBatches => (6, 0),
                    Inner::View => (7, 0),
                };
                pack(KIND_INNER, view, stream, which)
            }
            Node::File(key) if key.number >> NUMBER_BITS == 0 => {
                let (item, stream) = match key.item {
                    Item::Batch(s) => (0, s),
                    Item::Record(s) => (1, s),
                    Item::Index => (2, 0),
                    Item::All => (3, 0),
                };
                let face = Face::ALL.iter().position(|f| *f == key.face)? as u64;
                pack(KIND_FILE + FACES * item + face, key.view, stream, key.number)
            }
            Node::File(_) | Node::Link(_) => self.keep(node, looked_up)?,
        })
    }

    /// What `ino` stands for; `None` for a number that was never given out, or is forgotten.
    pub(crate) fn node(&self, ino: u64) -> Option<Node> {
        let bits = |at: u32, n: u32| ino >> at & ((1 << n) - 1);
        let number = bits(0, NUMBER_BITS);
        let stream = bits(NUMBER_BITS, STREAM_BITS) as u16;
        let view = view_of(ino);
        match ino >> KIND_AT {
            KIND_TOP => Top::ALL.iter().find(|t| **t as u64 == number).map(|t| Node::Top(*t)),
            KIND_INNER => {
                let inner = match number {
                    0 => Inner::Indices,
                    1 => Inner::Stream(stream),
                    2 => Inner::Schema(stream),
                    3 => Inner::Records(stream),
                    4 => Inner::Batches(stream),
                    5 => Inner::All,
                    6 => Inner::AllBatches,
                    7 => Inner::View,
                    _ => return None,
                };
                Some(Node::Inner(view, inner))
            }
            KIND_KEPT => {
                let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                kept.by_slot.get(&number).map(|(node, _)| *node)
            }
            kind => {
                let kind = kind.checked_sub(KIND_FILE)?;
                let item = match kind / FACES {
                    0 => Item::Batch(stream),
                    1 => Item::Record(stream),
                    2 => Item::Index,
                    3 => Item::All,
                    _ => return None,
                };
                let face = *Face::ALL.get((kind % FACES) as usize)?;
                Some(Node::File(Key { view, item, face, number }))
            }
        }
    }

    fn keep(&self, node: Node, looked_up: bool) -> Option<u64> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.by_node.get(&node).copied();
        let slot = match known {
            Some(slot) => slot,
            None if !looked_up => return None,
            None => {
                if kept.by_node.len() >= MOST_KEPT
                    && let Some((_, (oldest, _))) = kept.by_slot.pop_first()
                {
                    kept.by_node.remove(&oldest);
                }
                // Slots are not used again soon, so that a late request cannot mean another file.
                let slot = kept.next & ((1 << NUMBER_BITS) - 1);
                kept.next += 1;
                kept.by_node.insert(node, slot);
                kept.by_slot.insert(slot, (node, 0));
                slot
            }
        };
        if looked_up && let Some((_, lookups)) = kept.by_slot.get_mut(&slot) {
            *lookups += 1;
        }
        Some(pack(KIND_KEPT, node.view(), 0, slot))
    }

    /// The kernel forgot `ino`, which it had been told of `lookups` times since.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        if ino >> KIND_AT != KIND_KEPT {
            return;
        }
        let slot = ino & ((1 << NUMBER_BITS) - 1);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((node, left)) = kept.by_slot.get_mut(&slot) else { return };
        if lookups > *left {
            tracing::warn!("the kernel forgot inode {ino:#x} {lookups} times, {left} were known");
        }
        *left = left.saturating_sub(lookups);
        if *left == 0 {
            let node = *node;
            kept.by_slot.remove(&slot);
            kept.by_node.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use batchfs_sampler::Spec;

    use super::*;

    fn key(item: Item, face: Face, number: u64) -> Node {
        Node::File(Key { view: 127, item, face, number })
    }

    #[test]
    fn numbers_say_what_they_stand_for() {
        let inodes = Inodes::default();
        assert_eq!(inodes.number(Node::Top(Top::Root), true), Some(1));
        let mut nodes: Vec<Node> = Top::ALL.iter().map(|t| Node::Top(*t)).collect();
        for s in [0, 1, 999] {
            let inner = [Inner::Stream(s), Inner::Schema(s), Inner::Records(s), Inner::Batches(s)];
            nodes.extend(inner.map(|i| Node::Inner(3, i)));
            for face in Face::ALL {
                for number in [0, 1, (1 << 41) - 1] {
                    nodes.extend([Item::Batch(s), Item::Record(s)].map(|i| key(i, *face, number)));
                }
            }
        }
        nodes.extend(
            [Inner::Indices, Inner::All, Inner::AllBatches, Inner::View].map(|i| Node::Inner(0, i)),
        );
        nodes.extend([key(Item::Index, Face::Npy, 7), key(Item::All, Face::Safetensors, 7)]);
        let mut seen = std::collections::HashSet::new();
        for node in nodes {
            let ino = inodes.number(node, true).unwrap();
            assert!(seen.insert(ino), "{node:?} shares {ino:#x}");
            assert_eq!(inodes.node(ino), Some(node));
        }
        assert!(inodes.0.lock().unwrap().by_node.is_empty(), "none of these needs the table");
    }

    #[test]
    fn spellings_of_one_spec_are_one_link() {
        let inodes = Inodes::default();
        let link = |text: &str| Node::Link(text.parse::<Spec>().unwrap().into());
        let ino = inodes.number(link("batch=8"), true).unwrap();
        assert_eq!(inodes.number(link("batch=8,seed=0"), true), Some(ino));
        assert_ne!(inodes.number(link("batch=9"), true), Some(ino));
        assert_eq!(inodes.node(ino), Some(link("batch=8")));
        assert_eq!(view_of(ino), 0);
    }

    #[test]
    fn large_numbers_are_kept_until_forgotten_and_no_longer() {
        let inodes = Inodes::default();
        let node = key(Item::Batch(2), Face::Bare, u64::MAX);
        assert_eq!(inodes.number(node, false), None, "a listing alone keeps nothing");
        let ino = inodes.number(node, true).unwrap();
        assert_eq!(view_of(ino), 127);
        assert_eq!(inodes.number(node, true), Some(ino));
        assert_eq!(inodes.node(ino), Some(node));
        inodes.forget(ino, 1);
        assert_eq!(inodes.node(ino), Some(node));
        inodes.forget(ino, 1);
        assert_eq!(inodes.node(ino), None);
        inodes.forget(ino, 9);
        let ino = inodes.number(node, true).unwrap();
        for i in 0..MOST_KEPT as u64 {
            assert!(inodes.number(key(Item::Index, Face::Bare, u64::MAX - i), true).is_some());
        }
        assert_eq!(inodes.node(ino), None, "the oldest made room");
        assert_eq!(inodes.0.lock().unwrap().by_node.len(), MOST_KEPT);
        let again = inodes.number(node, true).unwrap();
        assert_ne!(again, ino);
        inodes.forget(ino, 1);
        assert_eq!(inodes.node(again), Some(node), "a late forget of the old number is no matter");
    }
}
