"""Textbook twins: slow, literal, importing nothing of the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor


def upfag(psi, grad, total, prox, x, *, gamma_1, gamma_2, gamma_3, delta, step_1, iterations):
    """Algorithm 3 of the paper with Barzilai-Borwein trials; returns the pairs (x^ag, x̄^ag)."""
    x_ag, Lambda, points = x, 0.0, []
    lambda_hat = beta_hat = step_1
    for k in range(1, iterations + 1):
        tau = 0
        while True:
            eta = lambda_hat * gamma_1**tau
            lam = (eta + math.sqrt(eta**2 + 4 * eta * Lambda)) / 2
            alpha = lam / (Lambda + lam)
            x_md = (1 - alpha) * x_ag + alpha * x
            x_new = prox(x - lam * grad(x_md), lam)
            tilde = (1 - alpha) * x_ag + alpha * x_new
            d = x_new - x
            right = psi(x_md) + alpha * torch.sum(grad(x_md) * d)
            right += alpha / (2 * lam) * torch.sum(d * d) + delta * alpha
            if psi(tilde) <= right:
                break
            tau += 1
        tau = 0
        while True:
            beta = beta_hat * gamma_2**tau
            bar = prox(x_ag - beta * grad(x_ag), beta)
            right = total(x_ag) - gamma_3 / (2 * beta) * torch.sum((bar - x_ag) ** 2) + 1 / k
            if total(bar) <= right:
                break
            tau += 1
        x_ag_old, x_ag = x_ag, min((x_ag, bar, tilde), key=total)
        s, y = tilde - x_md, grad(tilde) - grad(x_md)
        lambda_hat = torch.sum(s * s) / torch.sum(s * y) if torch.sum(s * y) > 0 else eta / gamma_1
        end = bar if x_ag is x_ag_old else x_ag
        s, y = end - x_ag_old, grad(end) - grad(x_ag_old)
        beta_hat = torch.sum(s * s) / torch.sum(s * y) if torch.sum(s * y) > 0 else beta / gamma_2
        x, Lambda = x_new, Lambda + lam
        points.append((x_ag, bar))
    return points


def fast_gradient(grad, project, x, *, rho, holder, nu, delta, iterations):
    """Algorithm 4 of the paper, with the sums written out; returns the points y_k."""
    L = holder * (holder / (2 * delta) * (1 - nu) / (1 + nu)) ** ((1 - nu) / (1 + nu))
    x_0, alphas, xs, grads, points = x, [1.0], [], [], []
    for _ in range(iterations):
        xs.append(x)
        grads.append(grad(x))
        y = project(x - grads[-1] / L)
        top = L * x_0 + sum(a * (rho * p - q) for a, p, q in zip(alphas, xs, grads, strict=True))
        S = sum(alphas)
        z = project(top / (L + rho * S))
        c = L + rho * S  # L a² = c (S + a)
        alphas.append((c + math.sqrt(c * c + 4 * L * c * S)) / (2 * L))
        tau = alphas[-1] / sum(alphas)
        x = tau * z + (1 - tau) * y
        points.append(y)
    return points


def proximal_gradient(grad, prox, x, *, step, iterations):
    """The plain method with a fixed step."""
    points = []
    for _ in range(iterations):
        x = prox(x - step * grad(x), step)
        points.append(x)
    return points


def accelerated_gradient(grad, prox, x, *, step, iterations):
    """FISTA of Beck and Teboulle with a fixed step."""
    z, ext, t, points = x, x, 1.0, []
    for _ in range(iterations):
        z_new = prox(ext - step * grad(ext), step)
        t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
        ext = z_new + (t - 1) / t_new * (z_new - z)
        z, t = z_new, t_new
        points.append(z)
    return points


def lbfgs_direction(pairs, r):
    """The two-loop recursion over pairs (s, y), oldest first."""
    q, alphas = r.clone(), []
    for s, y in reversed(pairs):
        alphas.append((s @ q) / (s @ y))
        q = q - alphas[-1] * y
    s, y = pairs[-1]
    q = q * (s @ y) / (y @ y)
    for (s, y), a in zip(pairs, reversed(alphas), strict=True):
        q = q + s * (a - (y @ q) / (s @ y))
    return -q


def panoc(psi, grad, g, prox, x, *, step, memory, iterations):
    """PANOC with the trials τ = 1, ½, ¼ and a given first step; returns z of every iteration."""

    def forward_backward(x, step):
        z = prox(x - step * grad(x), step)
        d = z - x
        envelope = psi(x) + grad(x) @ d + d @ d / (2 * step) + g(z)
        return z, (x - z) / step, envelope

    def between(x, x_new):
        return torch.linalg.vector_norm(grad(x_new) - grad(x)) / torch.linalg.vector_norm(x_new - x)

    pairs, curvatures, points, psi_1, lowest = [], [], [], psi(x), math.inf
    for _ in range(iterations):
        z, r, envelope = forward_backward(x, step)
        points.append(z)
        before = step
        if psi(x) <= lowest:
            lowest = psi(x)
            highest = psi_1 + 10 * (psi_1 - lowest)
            ceiling = max(psi_1, min(lowest + 100 * step * (r @ r), highest))
        d = lbfgs_direction(pairs, r) if pairs else None
        x_new = None
        for tau in (1, 0.5, 0.25) if pairs else ():
            trial = (1 - tau) * z + tau * (x + d)
            L = between(x, trial)
            if step * L > 1:
                step = max(0.1 * step, 0.95 / L)
                z, r, envelope = forward_backward(x, step)
            z_new, r_new, envelope_new = forward_backward(trial, step)
            if step * L > 1 or envelope_new > envelope - 0.01 * step * (r @ r):
                continue
            model = psi(trial) + grad(trial) @ (z_new - trial) + 0.475 * step * (r_new @ r_new)
            if psi(trial) <= ceiling or psi(z_new) <= model:
                x_new = trial
                break
            step *= 0.5
            z, r, envelope = forward_backward(x, step)
        if x_new is None:
            pairs, step = [], before
            z, r, envelope = forward_backward(x, step)
            while psi(z) > psi(x) + grad(x) @ (z - x) + 0.95 * (z - x) @ (z - x) / (2 * step):
                excess = psi(z) - psi(x) - grad(x) @ (z - x)
                step *= min(0.5, max(0.1, 0.95 * (z - x) @ (z - x) / (2 * excess * step)))
                z, r, envelope = forward_backward(x, step)
            x_new = z
        L, r_new = between(x, x_new), forward_backward(x_new, step)[1]
        if (x_new - x) @ (r_new - r) > 0:
            pairs = [*pairs, (x_new - x, r_new - r)][-memory:]
        curvatures = [*curvatures, L][-memory:]
        longest = min(2 * step, 0.95 / max(curvatures))
        step = longest if longest >= 1.5 * step else step
        x = x_new
    return points


def projected_gradient(
    grad: Callable[[Tensor], Tensor],
    lower: float,
    upper: float,
    x: Tensor,
    step: float,
    tol: float,
) -> Tensor:
    """Plain projected gradient on a box with a fixed step, until ‖v‖ ≤ tol at the new point."""
    while True:
        grad_x = grad(x)
        z = (x - step * grad_x).clamp(lower, upper)
        v = (x - z) / step + grad(z) - grad_x
        x = z
        if torch.linalg.vector_norm(v) <= tol:
            return x


def inexact_alm(
    Q: Tensor,
    q: Tensor,
    M: Tensor,
    b: Tensor,
    x: Tensor,
    *,
    beta: float,
    omega: float,
    lam: float,
    bound: float,
    iterations: int,
) -> list[tuple[Tensor, Tensor, float]]:
    """Classical method of multipliers for ½xᵀQx + qᵀx, Mx = b, |x_i| ≤ bound.

    Returns x, y and β after every iteration; the step of iteration k is 1/(‖Q‖ + β‖M‖²).
    """
    y, history = torch.zeros_like(b), []
    for _ in range(iterations):
        step = fixed_step(Q, M, beta)

        def grad(x: Tensor, y: Tensor = y, beta: float = beta) -> Tensor:
            return Q @ x + q + M.T @ (y + beta * (M @ x - b))

        x = projected_gradient(grad, -bound, bound, x, step, lam / beta)
        y = y + beta * (M @ x - b)
        beta = omega * beta
        history.append((x, y, beta))
    return history


def fixed_step(Q: Tensor, M: Tensor, beta: float) -> float:
    return 1 / (torch.linalg.matrix_norm(Q, 2) + beta * torch.linalg.matrix_norm(M, 2) ** 2).item()


def paper_sigma(sigma_1: float, A_1: float, A: float, nu: float, k: int) -> float:
    """Algorithm 1, line 3."""
    decay = A_1**nu * math.log(2) ** 2 / (A**nu * (k + 1) * math.log(k + 2) ** 2)
    return sigma_1 * min(1.0, decay)


def box_qp(Q: Tensor, q: Tensor, C: Tensor, b: Tensor) -> Tensor:
    """Minimizer of ½xᵀQx + qᵀx, Q > 0, with Cx = b and |x| ≤ 1: the best over all faces."""
    n, m = len(q), len(b)
    best, x_best = math.inf, torch.zeros_like(q)
    for face in product((-1.0, 0.0, 1.0), repeat=n):
        fixed = torch.tensor(face, dtype=q.dtype)
        F = fixed == 0
        k = int(F.sum())
        K = torch.zeros(k + m, k + m, dtype=q.dtype)
        K[:k, :k], K[k:, :k], K[:k, k:] = Q[F][:, F], C[:, F], C[:, F].T
        right = torch.cat((-(Q @ fixed + q)[F], b - C @ fixed))
        z = torch.linalg.lstsq(K, right.unsqueeze(1), driver="gelsd").solution.squeeze(1)
        x = fixed.clone()
        x[F] = z[:k]
        if x.abs().max() <= 1 + 1e-9 and (C @ x - b).abs().max() <= 1e-9:
            value = (0.5 * (x @ (Q @ x)) + q @ x).item()
            if value < best:
                best, x_best = value, x
    return x_best
