// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// How well the columns of a regression can be told apart.

package decide

import "math"

// condition is the condition number of the columns, each scaled to length one: how much worse the worst mixture of them is
// seen than the best; infinite where one cannot be told from the others.
func (n *normal) condition() float64 {
	size := n.size
	m := make([]float64, size*size)
	for i := range size {
		for j := range size {
			scale := math.Sqrt(n.gram[i*size+i] * n.gram[j*size+j])
			if scale <= smallest {
				return math.Inf(1)
			}
			m[i*size+j] = n.gram[i*size+j] / scale
		}
	}
	least, most := math.Inf(1), 0.0
	for _, value := range eigenvalues(m, size) {
		least, most = min(least, value), max(most, value)
	}
	if least <= smallest {
		return math.Inf(1)
	}
	return math.Sqrt(most / least)
}

// eigenvalues are those of a symmetric matrix, by Jacobi's method; the matrix is used up.
func eigenvalues(m []float64, size int) []float64 {
	for range turnsMost {
		off := 0.0
		for p := range size {
			for q := p + 1; q < size; q++ {
				off += m[p*size+q] * m[p*size+q]
				rotate(m, size, p, q)
			}
		}
		if off < smallest*smallest {
			break
		}
	}
	values := make([]float64, size)
	for i := range size {
		values[i] = m[i*size+i]
	}
	return values
}

// rotate makes one element off the diagonal zero.
func rotate(m []float64, size, p, q int) {
	off := m[p*size+q]
	if math.Abs(off) < smallest*smallest {
		return
	}
	theta := (m[q*size+q] - m[p*size+p]) / (2 * off)
	t := 1 / (math.Abs(theta) + math.Sqrt(theta*theta+1))
	if theta < 0 {
		t = -t
	}
	c := 1 / math.Sqrt(t*t+1)
	s := t * c
	for k := range size {
		a, b := m[k*size+p], m[k*size+q]
		m[k*size+p], m[k*size+q] = c*a-s*b, s*a+c*b
	}
	for k := range size {
		a, b := m[p*size+k], m[q*size+k]
		m[p*size+k], m[q*size+k] = c*a-s*b, s*a+c*b
	}
}
