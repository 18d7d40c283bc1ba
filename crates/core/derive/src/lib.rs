//! `#[derive(Storable)]` for the crate `untorn`, which has its documentation: `untorn::heap::Storable`.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Field, Fields, Result, parse_macro_input, parse_quote};

/// Makes a struct or enum a type that may be stored in a heap, if each of its fields is.
///
/// `#[storable(pointer)]` marks a field that is a raw pointer (`*const`, `*mut`, `NonNull`, and these in `Option` or
/// arrays) and always leads into the heap.
#[proc_macro_derive(Storable, attributes(storable))]
pub fn storable(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn derive(input: &DeriveInput) -> Result<Tokens> {
    if let Some(attribute) = input.attrs.iter().find(|attribute| attribute.path().is_ident("storable")) {
        return Err(Error::new(attribute.span(), "`storable` is for fields"));
    }
    let fields: Vec<&Field> = match &input.data {
        Data::Struct(data) => data.fields.iter().collect(),
        Data::Enum(data) => data.variants.iter().flat_map(|variant| fields(&variant.fields)).collect(),
        Data::Union(data) => {
            return Err(Error::new(
                data.union_token.span,
                "nobody knows which field of a union is in use: take an enum",
            ));
        }
    };
    let checks = fields.into_iter().map(check).collect::<Result<Vec<_>>>()?;
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::untorn::heap::Storable));
    }
    let name = &input.ident;
    let (for_impl, of_type, wheres) = generics.split_for_impl();
    Ok(quote! {
        const _: () = {
            // A function of the type, as fields may use its parameters, and `Self`.
            #[automatically_derived]
            impl #for_impl #name #of_type #wheres {
                #[allow(dead_code)]
                fn __fields_are_storable() {
                    #(#checks)*
                }
            }
            // SAFETY: each field is storable, as the function above shows.
            #[automatically_derived]
            unsafe impl #for_impl ::untorn::heap::Storable for #name #of_type #wheres {}
        };
    })
}

fn fields(fields: &Fields) -> impl Iterator<Item = &Field> {
    fields.iter()
}

/// Makes code that compiles only if a field may be stored; its errors point to the field's type.
fn check(field: &Field) -> Result<Tokens> {
    let (span, of) = (field.ty.span(), &field.ty);
    match is_pointer(&field.attrs)? {
        true => Ok(quote_spanned! { span => ::untorn::__private::is_pointer::<#of>(); }),
        false => Ok(quote_spanned! { span => ::untorn::__private::is_storable::<#of>(); }),
    }
}

fn is_pointer(attributes: &[Attribute]) -> Result<bool> {
    let mut found = false;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("storable")) {
        attribute.parse_nested_meta(|meta| {
            found = meta.path.is_ident("pointer");
            if found { Ok(()) } else { Err(meta.error("only `storable(pointer)` is known")) }
        })?;
    }
    Ok(found)
}
