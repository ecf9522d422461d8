// Functions of one value and their derivatives, by ATen. Elements are of one floating-point type,
// unless said otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include "windlass/graph/attributes.h"

namespace windlass {

inline bool is_integral(const at::Tensor& x) { return c10::isIntegralType(x.scalar_type(), true); }

// y = f(x) into y, for those that change integers; computed as floating-point numbers and truncated
// where integers do not do.
void unary_of_integers(const UnaryAttrs& attrs, const at::Tensor& x, at::Tensor& y);

// y = f(x), into y.
void unary_function(const UnaryAttrs& attrs, const at::Tensor& x, at::Tensor& y);

// dx = g f'(v), into dx; v is the input or the output, whichever the gradient rule saves. The two
// functions whose gradient has no out-variant replace dx by a fresh tensor.
void unary_derivative(const UnaryAttrs& attrs, const at::Tensor& g, const at::Tensor& v,
                      at::Tensor& dx);

}  // namespace windlass
