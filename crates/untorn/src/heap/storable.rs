//! Types that may be stored in a heap: whatever they point to is in the heap as well.

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::num::{NonZero, Saturating, Wrapping};
use std::ptr::NonNull;

/// A type that may be stored in a heap: another process reads it, at the same address.
///
/// Numbers are, and arrays, tuples, options and results of what is; collections of this crate; pointers, which only
/// `unsafe` code follows. A type of the program's own becomes so by [`crate::storable!`], which checks its fields.
/// References, `Box`, `String`, `Vec`, trait objects and functions are not: they point into the process.
///
/// ```compile_fail,E0277
/// # let dir = tempfile::tempdir().unwrap();
/// let heap = untorn::heap::Heap::open_or_create(dir.path().join("heap"))?;
/// heap.root_or("names", |alloc| untorn::heap::HeapVec::<String>::new_in(alloc))?;
/// # Ok::<(), untorn::Error>(())
/// ```
///
/// # Safety
/// A value of the type means the same in another process in which the heap is open: it has no pointer that is followed
/// by safe code and leads out of the heap, and nothing else that ends with the process.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored in a heap: another process would not find what it points to",
    label = "points out of the heap, or is not known not to",
    note = "use `HeapVec`, `HeapBox`, `HeapString`, `HeapMap` or `HeapBTreeMap` instead of the standard library's types",
    note = "put the definition of a type of your own into `untorn::storable! {{ … }}`"
)]
pub unsafe trait Storable {}

macro_rules! storable_types {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: without pointers.
            unsafe impl Storable for $type {}
        )*
    };
}

storable_types!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64, bool, char, ());
storable_types!(
    std::sync::atomic::AtomicBool,
    std::sync::atomic::AtomicU8,
    std::sync::atomic::AtomicU16,
    std::sync::atomic::AtomicU32,
    std::sync::atomic::AtomicU64,
    std::sync::atomic::AtomicUsize,
    std::sync::atomic::AtomicI8,
    std::sync::atomic::AtomicI16,
    std::sync::atomic::AtomicI32,
    std::sync::atomic::AtomicI64,
    std::sync::atomic::AtomicIsize,
    std::cmp::Ordering,
    std::time::Duration,
    std::net::IpAddr,
    std::net::Ipv4Addr,
    std::net::Ipv6Addr,
    std::net::SocketAddr,
);

macro_rules! storable_around {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: nothing but what is inside.
            unsafe impl<T: Storable> Storable for $type {}
        )*
    };
}

storable_around!(
    Option<T>,
    Cell<T>,
    UnsafeCell<T>,
    MaybeUninit<T>,
    ManuallyDrop<T>,
    Wrapping<T>,
    Saturating<T>,
    std::cmp::Reverse<T>,
    std::ops::Range<T>,
    std::ops::RangeInclusive<T>,
    [T],
);

// SAFETY: only `unsafe` code follows it.
unsafe impl<T> Storable for *mut T {}
// SAFETY: as above.
unsafe impl<T> Storable for *const T {}
// SAFETY: as above.
unsafe impl<T> Storable for NonNull<T> {}
// SAFETY: nothing is in it.
unsafe impl<T: ?Sized> Storable for PhantomData<T> {}
// SAFETY: nothing but its elements.
unsafe impl<T: Storable, const N: usize> Storable for [T; N] {}
// SAFETY: nothing but one of both.
unsafe impl<T: Storable, E: Storable> Storable for Result<T, E> {}

macro_rules! storable_numbers {
    ($($type:ty),*) => {
        $(
            // SAFETY: without pointers.
            unsafe impl Storable for NonZero<$type> {}
        )*
    };
}

storable_numbers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! storable_tuples {
    ($(($($name:ident),+))*) => {
        $(
            // SAFETY: nothing but its members.
            unsafe impl<$($name: Storable),+> Storable for ($($name,)+) {}
        )*
    };
}

storable_tuples!((A)(A, B)(A, B, C)(A, B, C, D)(A, B, C, D, E)(A, B, C, D, E, F));

/// Nothing; it compiles for storable types only.
#[doc(hidden)]
pub const fn is_storable<T: Storable + ?Sized>() {}

/// Defines structs and enums that may be stored in a heap ([`heap::Storable`](crate::heap::Storable)): each field must
/// be storable itself. A type may have one lifetime, that of the handle of its heap, and no other parameters.
///
/// ```
/// use untorn::heap::{HeapString, HeapVec};
///
/// untorn::storable! {
///     /// A list.
///     #[repr(C)]
///     pub struct List<'h> {
///         pub name: HeapString<'h>,
///         pub items: HeapVec<'h, Item<'h>>,
///     }
///
///     #[repr(C)]
///     pub enum Item<'h> {
///         Text(HeapString<'h>),
///         Number { value: i64 },
///         Nothing,
///     }
/// }
/// ```
///
/// What points out of the heap is refused:
///
/// ```compile_fail,E0277
/// untorn::storable! {
///     struct Note {
///         text: String,
///     }
/// }
/// ```
#[macro_export]
macro_rules! storable {
    () => {};
    (
        $(#[$meta:meta])* $vis:vis struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident : $type:ty),* $(,)?
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])* $vis struct $name $(<$life>)? { $($(#[$field_meta])* $field_vis $field: $type),* }
        $crate::storable!(@check $name [$($life)?] [$($type;)*]);
        $crate::storable! { $($rest)* }
    };
    (
        $(#[$meta:meta])* $vis:vis struct $name:ident $(<$life:lifetime>)? (
            $($(#[$field_meta:meta])* $field_vis:vis $type:ty),* $(,)?
        );
        $($rest:tt)*
    ) => {
        $(#[$meta])* $vis struct $name $(<$life>)? ($($(#[$field_meta])* $field_vis $type),*);
        $crate::storable!(@check $name [$($life)?] [$($type;)*]);
        $crate::storable! { $($rest)* }
    };
    (
        $(#[$meta:meta])* $vis:vis enum $name:ident $(<$life:lifetime>)? {
            $(
                $(#[$variant_meta:meta])* $variant:ident
                $(( $($(#[$place_meta:meta])* $place:ty),* $(,)? ))?
                $({ $($(#[$field_meta:meta])* $field:ident : $type:ty),* $(,)? })?
                $(= $number:expr)?
            ),* $(,)?
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])* $vis enum $name $(<$life>)? {
            $(
                $(#[$variant_meta])* $variant
                $(( $($(#[$place_meta])* $place),* ))?
                $({ $($(#[$field_meta])* $field: $type),* })?
                $(= $number)?
            ),*
        }
        $crate::storable!(@check $name [$($life)?] [$($($($place;)*)? $($($type;)*)?)*]);
        $crate::storable! { $($rest)* }
    };
    (@check $name:ident [] [$($type:ty;)*]) => {
        // SAFETY: each field is storable.
        unsafe impl $crate::heap::Storable for $name {}
        const _: () = {
            $($crate::heap::is_storable::<$type>();)*
        };
    };
    (@check $name:ident [$life:lifetime] [$($type:ty;)*]) => {
        // SAFETY: each field is storable.
        unsafe impl<$life> $crate::heap::Storable for $name<$life> {}
        const _: () = {
            const fn check<$life>() {
                $($crate::heap::is_storable::<$type>();)*
            }
            check();
        };
    };
}
