// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// How well the columns of a regression can be told apart.

package attribution

import "math"

// condition is the condition number of the columns, each scaled to length one: how much worse the worst mixture of them is
// seen than the best; infinite where one cannot be told from the others.
func (n *normal) condition() float64 {
	scaled, ok := n.scaled()
	if !ok {
		return math.Inf(1)
	}
	least, most := math.Inf(1), 0.0
	for _, value := range eigenvalues(scaled.gram, n.size) {
		least, most = min(least, value), max(most, value)
	}
	if least <= smallest {
		return math.Inf(1)
	}
	return math.Sqrt(most / least)
}

// conditionWithin is the same, or any number from it up to a limit: no eigenvalue is above the sum of all, and none below one
// over the sum of the inverse's.
func (n *normal) conditionWithin(limit float64) float64 {
	scaled, ok := n.scaled()
	if !ok {
		return math.Inf(1)
	}
	if inverse, ok := scaled.inverse(); ok {
		sum := 0.0
		for i := range n.size {
			sum += inverse[i*n.size+i]
		}
		if bound := math.Sqrt(float64(n.size) * sum); bound < limit {
			return bound
		}
	}
	return n.condition()
}

// scaled scales each column to length one; ok is false where one has none.
func (n *normal) scaled() (scaled *normal, ok bool) {
	scaled = newNormal(n.size)
	for i := range n.size {
		for j := range n.size {
			length := math.Sqrt(n.gram[i*n.size+i] * n.gram[j*n.size+j])
			if length <= smallest {
				return nil, false
			}
			scaled.gram[i*n.size+j] = n.gram[i*n.size+j] / length
		}
	}
	return scaled, true
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
