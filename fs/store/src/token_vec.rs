//! Memory for the tokens of a row group.
//!
//! A row group is written once, read for some steps and given up: with memory of the C library half of
//! the time of decoding went into page faults. So it lies in huge pages, and comes back to be
//! filled again.
//!
//! Tokens below 65,536 are kept in 16 bits, which halves what is written to memory and read from it.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::sys::{give_back, prefetch};

const HUGE_PAGE: usize = 2 << 20;

/// What is left over of whole huge pages gets one, too, from this size on.
const WORTH_ONE: usize = HUGE_PAGE / 8 * 7;

/// Larger buffers are rare, and not kept.
const LARGEST: usize = 64 << 20;

/// Bytes after which the processor has seen by itself where reading goes.
const PREFETCH: usize = 2 << 10;

/// Bytes of buffers that are kept however many these are. A window is given up at once, for the next one.
const IDLE: usize = 64 << 20;

/// Bytes that a buffer may have behind those that are asked for.
const BEHIND: usize = HUGE_PAGE / 8;

/// Buffers that came back, for the row groups of one source.
#[derive(Debug)]
pub struct Spare {
    most: usize,
    /// With the bytes of each that were touched.
    idle: Mutex<Vec<(MmapMut, usize)>>,
}

impl Spare {
    /// Keeps up to `most` buffers, and more of them if they are small: 64 MiB in all.
    pub fn new(most: usize) -> Arc<Spare> {
        Arc::new(Spare { most, idle: Mutex::default() })
    }

    /// No tokens, and so many are to come.
    pub fn tokens(self: &Arc<Self>, count: usize) -> TokenVec {
        TokenVec { memory: self.buffer(0), wide: false, expected: count }
    }

    /// Nothing, with room for so many bytes.
    pub fn buffer(self: &Arc<Self>, bytes: usize) -> Buffer {
        let mapped = if bytes < WORTH_ONE { None } else { self.take(bytes) };
        let (memory, touched) = match mapped {
            Some((map, touched)) => (Memory::Mapped(map), touched),
            None => (Memory::heap(bytes), 0),
        };
        Buffer { memory, len: 0, touched, home: Arc::downgrade(self) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(MmapMut, usize)>> {
        // Whole at each point where something could panic.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: usize) -> Option<(MmapMut, usize)> {
        let mut idle = self.lock();
        let whole = bytes.checked_next_multiple_of(HUGE_PAGE)?;
        let range = whole..=whole.saturating_add(HUGE_PAGE);
        if let Some(at) = idle.iter().position(|(map, _)| range.contains(&map.len())) {
            let (mut map, touched) = idle.remove(at);
            drop(idle);
            // What is behind these tokens counts for nobody.
            let touched = match touched > bytes.saturating_add(BEHIND) {
                true => give_back(&mut map, bytes),
                false => touched,
            };
            return Some((map, touched));
        }
        drop(idle);
        // The kernel aligns a mapping of whole huge pages to these; what is beyond is never touched.
        let map = MmapOptions::new().len(whole).map_anon();
        let map = map.ok()?;
        let huge = footprint(bytes) / HUGE_PAGE * HUGE_PAGE;
        // Without huge pages it is as good, and slower.
        let _ = map.advise_range(Advice::HugePage, 0, huge);
        Some((map, 0))
    }
}

/// Bytes of memory that so many bytes of tokens take.
fn footprint(bytes: usize) -> usize {
    let rest = bytes % HUGE_PAGE;
    if rest < WORTH_ONE { bytes } else { bytes.saturating_add(HUGE_PAGE - rest) }
}

enum Memory {
    /// Of words, so that it is aligned for tokens.
    Heap(Vec<u64>),
    Mapped(MmapMut),
}

impl Memory {
    fn heap(bytes: usize) -> Memory {
        Memory::Heap(vec![0; bytes.div_ceil(size_of::<u64>())])
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Heap(words) => bytemuck::cast_slice(words),
            Memory::Mapped(map) => map,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Heap(words) => bytemuck::cast_slice_mut(words),
            Memory::Mapped(map) => map,
        }
    }
}

/// Bytes in huge pages, unless they are few. It grows at its end while there is room, and is read as a slice.
pub struct Buffer {
    memory: Memory,
    len: usize,
    /// Bytes that whoever had it before has touched.
    touched: usize,
    home: Weak<Spare>,
}

impl Buffer {
    /// Bytes of memory that it takes.
    fn footprint(&self) -> usize {
        footprint(self.len.max(self.touched))
    }

    /// Adds bytes. It is `false`, and nothing is added, if there is no room for them.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> bool {
        let room = self.room(bytes.len()).map(|room| room.copy_from_slice(bytes));
        self.len += room.map_or(0, |()| bytes.len());
        room.is_some()
    }

    /// The next `bytes`, if there are so many.
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.memory.bytes_mut().get_mut(self.len..)?.get_mut(..bytes)
    }

    /// An empty one from where this one is from.
    fn another(&self, bytes: usize) -> Buffer {
        let fresh =
            || Buffer { memory: Memory::heap(bytes), len: 0, touched: 0, home: Weak::new() };
        self.home.upgrade().map_or_else(fresh, |home| home.buffer(bytes))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else { return };
        let touched = self.footprint();
        if let Memory::Mapped(map) = std::mem::replace(&mut self.memory, Memory::heap(0))
            && map.len() <= LARGEST
        {
            let mut idle = home.lock();
            idle.push((map, touched));
            // The oldest go, whose size may be one that nobody asks for any more.
            let mut bytes: usize = idle.iter().map(|(map, _)| map.len()).sum();
            let mut given_up = Vec::new();
            while idle.len() > home.most && bytes > IDLE {
                let oldest = idle.remove(0);
                bytes -= oldest.0.len();
                given_up.push(oldest);
            }
            drop(idle);
            drop(given_up);
        }
    }
}

/// The tokens of a row group. It grows at its end.
pub struct TokenVec {
    memory: Buffer,
    /// Tokens have 32 bits; else 16, in which all of them fit.
    wide: bool,
    /// How many there will be, as far as is known.
    expected: usize,
}

impl TokenVec {
    /// Bytes of memory that `tokens` take at the most: 4 each, and what is missing to a huge page if it is
    /// little.
    pub fn bytes_of(tokens: u64) -> u64 {
        let bytes = usize::try_from(tokens.saturating_mul(4)).unwrap_or(usize::MAX);
        footprint(bytes) as u64
    }

    /// Bytes of memory that these tokens take.
    pub fn bytes(&self) -> u64 {
        self.memory.footprint() as u64
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.memory.len() / self.width()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// All of them.
    pub fn to_vec(&self) -> Vec<i32> {
        let mut out = vec![0; self.len()];
        self.copy(0, bytemuck::cast_slice_mut(&mut out));
        out
    }

    /// Whether they have 16 bits.
    pub fn is_narrow(&self) -> bool {
        !self.wide
    }

    fn width(&self) -> usize {
        if self.wide { size_of::<i32>() } else { size_of::<u16>() }
    }

    /// Adds tokens.
    pub fn extend_from_slice(&mut self, tokens: &[i32]) {
        let narrow = |all: u32| all <= u16::MAX.into();
        if self.is_empty() {
            // Those of a large vocabulary have wide ones among the first, so that none are moved.
            self.wide = !narrow(tokens.iter().fold(0, |all, &token| all | token as u32));
        }
        if !self.wide {
            let room = self.room(2 * tokens.len());
            let out: &mut [u16] = bytemuck::cast_slice_mut(room);
            let mut all = 0;
            for (out, &token) in out.iter_mut().zip(tokens) {
                *out = token as u16;
                all |= token as u32;
            }
            if narrow(all) {
                self.memory.len += 2 * tokens.len();
                return;
            }
            self.widen();
        }
        self.room(4 * tokens.len()).copy_from_slice(bytemuck::cast_slice(tokens));
        self.memory.len += 4 * tokens.len();
    }

    /// Adds tokens that have 16 bits.
    pub fn extend_from_narrow(&mut self, tokens: &[u16]) {
        self.wide &= !self.is_empty();
        if self.wide {
            write_wide(tokens, self.room(4 * tokens.len()));
        } else {
            self.room(2 * tokens.len()).copy_from_slice(bytemuck::cast_slice(tokens));
        }
        self.memory.len += self.width() * tokens.len();
    }

    /// Room for so many bytes behind the last token.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.memory.room(bytes).is_none() {
            let all = self.memory.len() + bytes;
            // If there are more than there were said to be, there may be many more.
            let more = if self.is_empty() { all } else { 2 * all };
            let mut memory = self.memory.another(more.max(self.width() * self.expected));
            memory.extend_from_slice(&self.memory);
            self.memory = memory;
        }
        self.memory.room(bytes).unwrap_or_default()
    }

    fn widen(&mut self) {
        let count = self.len();
        let mut memory = self.memory.another(4 * self.expected.max(count));
        if let Some(room) = memory.room(4 * count) {
            self.copy(0, room);
            memory.len = 4 * count;
        }
        (self.memory, self.wide) = (memory, true);
    }

    /// Has the processor fetch `count` tokens from number `from` on, which are copied next; of many, the first.
    pub fn prefetch(&self, from: usize, count: usize) {
        let (width, most) = (self.width(), PREFETCH);
        let bytes = self.memory.get(from.saturating_mul(width)..).unwrap_or_default();
        prefetch(&bytes[..bytes.len().min(count.saturating_mul(width)).min(most)]);
    }

    /// Writes the tokens from number `from` on to `out`, as little-endian bytes. It is `false` if there are
    /// not so many.
    pub fn copy(&self, from: usize, out: &mut [u8]) -> bool {
        let place = from..from.saturating_add(out.len() / 4);
        // Little-endian, as the host is: the store builds on no other.
        if self.wide {
            let tokens: Option<&[i32]> = bytemuck::cast_slice(&self.memory).get(place);
            return tokens.map(|t| out.copy_from_slice(bytemuck::cast_slice(t))).is_some();
        }
        let tokens: Option<&[u16]> = bytemuck::cast_slice(&self.memory).get(place);
        tokens.map(|tokens| write_wide(tokens, out)).is_some()
    }
}

/// Writes tokens of 16 bits to `out`, as little-endian bytes of 32 bits each.
pub fn write_wide(tokens: &[u16], out: &mut [u8]) {
    match bytemuck::try_cast_slice_mut::<u8, u32>(out) {
        Ok(out) => out.iter_mut().zip(tokens).for_each(|(out, &token)| *out = token.into()),
        Err(_) => out.chunks_exact_mut(4).zip(tokens).for_each(|(out, &token)| {
            out.copy_from_slice(&u32::from(token).to_le_bytes());
        }),
    }
}

impl Default for TokenVec {
    fn default() -> Self {
        let memory = Buffer { memory: Memory::heap(0), len: 0, touched: 0, home: Weak::new() };
        TokenVec { memory, wide: false, expected: 0 }
    }
}

impl From<Vec<i32>> for TokenVec {
    fn from(tokens: Vec<i32>) -> Self {
        let mut all = TokenVec { expected: tokens.len(), ..TokenVec::default() };
        all.extend_from_slice(&tokens);
        all
    }
}

impl PartialEq for TokenVec {
    fn eq(&self, other: &Self) -> bool {
        self.to_vec() == other.to_vec()
    }
}

impl Eq for TokenVec {}

impl fmt::Debug for TokenVec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_vec().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_that_were_added_in_whatever_memory() {
        for room in [0, 10, WORTH_ONE / 4, 3 * HUGE_PAGE / 4 + 17] {
            // As many as there is room for, fewer, and more.
            for count in [room, room / 2, room + 1, 3 * room + 5] {
                // All in 16 bits, from the first on in more, from somewhere on, and the last.
                let last = count as i32 - 1;
                let odd = [(0, 65_535), (0, 65_536), (last / 2, -1), (last, i32::MAX)];
                for (at, token) in odd {
                    let mut want: Vec<i32> = (0..count as i32).map(|i| i % 65_521).collect();
                    if let Some(odd) = want.get_mut(at as usize) {
                        *odd = token;
                    }
                    let spare = Spare::new(1);
                    let mut tokens = spare.tokens(room);
                    want.chunks(1000).for_each(|some| tokens.extend_from_slice(some));
                    assert!(tokens.to_vec() == want, "{count} of {room}, {token} at {at}");
                    let wide = count > 0 && token != 65_535;
                    assert_eq!(tokens.len(), count);
                    assert_eq!(tokens.bytes(), footprint(if wide { 4 } else { 2 } * count) as u64);
                    // From somewhere on, to memory of any alignment.
                    let (from, len) = (count / 3, count / 2);
                    let mut out = vec![0; 4 * len + 8];
                    for shift in 0..4 {
                        assert!(tokens.copy(from, &mut out[shift..shift + 4 * len]));
                        let got = out[shift..]
                            .chunks_exact(4)
                            .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                        assert!(got.take(len).eq(want[from..from + len].iter().copied()));
                    }
                    assert!(!tokens.copy(count, &mut [0; 4]));
                    assert_eq!(tokens, TokenVec::from(want.clone()));
                    // Those of 16 bits go behind any others.
                    let narrow: Vec<u16> = (0..1000).map(|i| i * 65).collect();
                    tokens.extend_from_narrow(&narrow);
                    want.extend(narrow.iter().map(|&token| i32::from(token)));
                    assert_eq!(tokens, TokenVec::from(want));
                }
            }
        }
    }

    #[test]
    fn bytes_are_added_while_there_is_room() {
        let spare = Spare::new(1);
        for room in [40, HUGE_PAGE] {
            let mut memory = spare.buffer(room);
            let all: Vec<u8> = (0..room).map(|i| (i % 251) as u8).collect();
            assert!(memory.extend_from_slice(&all[..7]));
            assert!(memory.extend_from_slice(&all[7..room - 3]));
            assert!(memory[..] == all[..room - 3]);
            assert!(!memory.extend_from_slice(&all[..20]));
            assert!(memory.extend_from_slice(&all[room - 3..]));
            assert!(memory[..] == all);
        }
    }

    #[test]
    fn so_many_buffers_as_told_are_kept_and_each_has_one_owner() {
        let spare = Spare::new(2);
        let kept = |size: usize, count: usize| {
            drop((0..count).map(|_| spare.buffer(size)).collect::<Vec<_>>());
            std::mem::take(&mut *spare.lock()).len()
        };
        let room = HUGE_PAGE;
        assert_eq!((kept(room, 40), kept(16 * room, 4), kept(LARGEST, 4)), (32, 2, 2));
        assert_eq!(kept(LARGEST + room, 4), 0);
        drop([spare.buffer(room), spare.buffer(room)]);
        let (mut a, mut b) = (spare.buffer(room), spare.buffer(room - 9));
        assert!(a.is_empty() && spare.lock().is_empty());
        a.extend_from_slice(&[1]);
        b.extend_from_slice(&[2]);
        assert_eq!((&*a, &*b), (&[1][..], &[2][..]));
        // Another one is not taken for what is much smaller.
        drop(a);
        let other = spare.buffer(room / 2);
        assert_eq!(spare.lock().len(), 1);
        drop((b, other));

        spare.lock().clear();
        let mut large = spare.buffer(2 * room);
        assert!(large.extend_from_slice(&vec![1; 2 * room]));
        drop(large);
        let (small, new) = (spare.buffer(room), spare.buffer(room));
        assert_eq!((small.footprint(), new.footprint()), (room, 0));
        drop((small, new));

        // What was touched before counts, if it is little; more is given back.
        spare.lock().clear();
        let size = room + BEHIND;
        let mut large = spare.buffer(2 * room);
        assert!(large.extend_from_slice(&vec![1; size]));
        drop(large);
        let near = spare.buffer(room + 1);
        assert_eq!(near.footprint(), size);
        drop(near);
        let mut less = spare.buffer(room);
        assert_eq!(less.footprint(), size);
        assert!(less.extend_from_slice(&vec![2; room]) && less[..] == vec![2; room]);

        // The newest are kept.
        spare.lock().clear();
        drop((0..3).map(|_| spare.buffer(18 << 20)).collect::<Vec<_>>());
        drop((0..2).map(|_| spare.buffer(32 << 20)).collect::<Vec<_>>());
        let kept: Vec<usize> = spare.lock().iter().map(|(map, _)| map.len() >> 20).collect();
        assert_eq!(kept, [32, 32]);
        drop(spare);
        drop(less);
    }
}
