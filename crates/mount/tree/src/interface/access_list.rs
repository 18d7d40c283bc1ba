//! POSIX access lists (ACL) as extended attributes, and their changes by `chmod`, `umask` and new names in a directory.
//!
//! The kernel enforces the lists. The file system keeps the mode and the list in step, and passes lists on.

use crate::interface::file_tree::{Errno, Result};

/// Name of the list that controls access to an inode.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of a directory's list for new inodes in it.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: [u8; 4] = 2u32.to_le_bytes();
const OWNER: u16 = 1;
const GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHERS: u16 = 32;
/// Tags of named users and groups.
const NAMED: [u16; 2] = [2, 8];

/// Whether an attribute is an access list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    rights: u16,
    id: [u8; 4],
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessList(Vec<Entry>);

impl AccessList {
    /// Decodes the value of an attribute; `EINVAL` if it is not a valid list. An empty list is `None`.
    pub fn decode(value: &[u8]) -> Result<Option<AccessList>> {
        let invalid = Errno(libc::EINVAL);
        let entries = value.strip_prefix(&VERSION).ok_or(invalid)?.chunks_exact(8);
        if !entries.remainder().is_empty() {
            return Err(invalid);
        }
        let number = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let id = |entry: &[u8]| [entry[4], entry[5], entry[6], entry[7]];
        let entries = entries.map(|e| Entry { tag: number(e, 0), rights: number(e, 2), id: id(e) });
        let list = AccessList(entries.collect());
        if list.0.is_empty() {
            return Ok(None);
        }
        let count = |tag| list.0.iter().filter(|entry| entry.tag == tag).count();
        let named = NAMED.iter().map(|tag| count(*tag)).sum::<usize>();
        let known = [OWNER, GROUP, OTHERS, MASK].iter().map(|tag| count(*tag)).sum::<usize>() + named;
        let once = [OWNER, GROUP, OTHERS].iter().all(|tag| count(*tag) == 1);
        let masked = count(MASK) == 1 || count(MASK) == 0 && named == 0;
        let rights = list.0.iter().all(|entry| entry.rights <= 7);
        if known == list.0.len() && once && masked && rights { Ok(Some(list)) } else { Err(invalid) }
    }

    /// The attribute's value.
    pub fn encode(&self) -> Box<[u8]> {
        let entry = |e: &Entry| [&e.tag.to_le_bytes()[..], &e.rights.to_le_bytes(), &e.id].concat();
        VERSION.into_iter().chain(self.0.iter().flat_map(entry)).collect()
    }

    /// Whether the mode alone can express the list.
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// Tag of the entry that the group bits of the mode show: the mask, which limits the rights of all named users and
    /// groups, if the list has one.
    fn group_class(&self) -> u16 {
        if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP }
    }

    fn classes(&mut self) -> impl Iterator<Item = (&mut u16, u32)> {
        let group = self.group_class();
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            OWNER => Some((&mut entry.rights, 6)),
            OTHERS => Some((&mut entry.rights, 0)),
            tag if tag == group => Some((&mut entry.rights, 3)),
            _ => None,
        })
    }

    /// The mode with the rights of the list.
    pub fn mode(&self, mode: u32) -> u32 {
        self.clone().classes().fold(mode & !0o777, |mode, (rights, shift)| mode | u32::from(*rights) << shift)
    }

    /// Applies a `chmod`.
    pub fn set_mode(&mut self, mode: u32) {
        self.classes().for_each(|(rights, shift)| *rights = (mode >> shift & 7) as u16);
        debug_assert_eq!(self.mode(0), mode & 0o777, "a list that cannot express the mode: {self:?}");
    }

    /// The list that a directory passes on to a new inode with a mode, limited to the rights of the mode.
    pub fn passed_on(&self, mode: u32) -> AccessList {
        let mut list = self.clone();
        list.classes().for_each(|(rights, shift)| *rights &= (mode >> shift & 7) as u16);
        debug_assert_eq!(list.mode(0) & !mode, 0, "a list passes on more than {mode:o}: {list:?}");
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> AccessList {
        AccessList(entries.iter().map(|(tag, rights)| Entry { tag: *tag, rights: *rights, id: [255; 4] }).collect())
    }

    #[test]
    fn the_mask_is_the_modes_group() {
        let mut all = list(&[(OWNER, 6), (2, 7), (GROUP, 4), (MASK, 7), (OTHERS, 0)]);
        assert_eq!(all.mode(0o4000), 0o4670);
        all.set_mode(0o741);
        assert_eq!(all, list(&[(OWNER, 7), (2, 7), (GROUP, 4), (MASK, 4), (OTHERS, 1)]));
        let mut few = list(&[(OWNER, 6), (GROUP, 5), (OTHERS, 4)]);
        few.set_mode(0o617);
        assert_eq!(few.mode(0), 0o617);
        assert!(few.is_mode() && !all.is_mode());
        assert_eq!(all.passed_on(0o666).mode(0), 0o640);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let all = list(&[(OWNER, 6), (2, 7), (GROUP, 4), (MASK, 7), (OTHERS, 0)]);
        assert_eq!(AccessList::decode(&all.encode()), Ok(Some(all)));
        assert_eq!(AccessList::decode(&VERSION), Ok(None));
        let invalid = Err(Errno(libc::EINVAL));
        assert_eq!(AccessList::decode(b""), invalid);
        assert_eq!(AccessList::decode(&[VERSION.as_slice(), &[0; 7]].concat()), invalid);
        for entries in [
            &[(OWNER, 6), (GROUP, 4)][..],
            &[(OWNER, 6), (2, 7), (GROUP, 4), (OTHERS, 0)],
            &[(OWNER, 8), (GROUP, 4), (OTHERS, 0)],
            &[(OWNER, 6), (GROUP, 4), (OTHERS, 0), (OTHERS, 0)],
            &[(OWNER, 6), (GROUP, 4), (OTHERS, 0), (64, 0)],
        ] {
            assert_eq!(AccessList::decode(&list(entries).encode()), invalid, "{entries:?}");
        }
    }
}
